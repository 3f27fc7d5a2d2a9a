package control

import (
	"context"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// RegisterDataset stores a graph under its fingerprint, or under wantID, and returns both names. Idempotent.
func (l *Link) RegisterDataset(ctx context.Context, graph []byte, spec *pecanv1.DatasetSpec, wantID string) (id, fingerprint string, err error) {
	var answer *pecanv1.RegisterDatasetResponse
	err = l.Ask(ctx, "register the dataset with", func(ctx context.Context) error {
		var err error
		answer, err = l.upload(ctx, graph, spec, wantID)
		return err
	})
	return answer.GetDatasetId(), answer.GetFingerprint(), err
}

func (l *Link) upload(ctx context.Context, graph []byte, spec *pecanv1.DatasetSpec, wantID string) (*pecanv1.RegisterDatasetResponse, error) {
	// This ends the call on every path: a failed Send leaves the rest to CloseAndRecv.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.api.RegisterDataset(ctx)
	if err != nil {
		return nil, err
	}
	header := &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: int64(len(graph)), DatasetId: wantID}
	err = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Header_{Header: header}})
	for rest := graph; err == nil && len(rest) > 0; {
		n := min(len(rest), ChunkBytes)
		err = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Chunk{Chunk: rest[:n]}})
		rest = rest[n:]
	}
	// A failed Send returns only EOF; CloseAndRecv returns the reason.
	return stream.CloseAndRecv()
}

// askFor makes a call with a request. It repeats the call as Ask does.
func askFor[Q, A any](ctx context.Context, l *Link, what string, of func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q) (answer *A, err error) {
	err = l.Ask(ctx, what, func(ctx context.Context) (err error) {
		answer, err = of(ctx, request)
		return err
	})
	return answer, err
}

// GetDataset returns what the dispatcher knows of a registered dataset.
func (l *Link) GetDataset(ctx context.Context, id string) (*pecanv1.GetDatasetResponse, error) {
	return askFor(ctx, l, "get the dataset from", l.api.GetDataset, &pecanv1.GetDatasetRequest{DatasetId: id})
}

// Status returns the dispatcher's status for operators.
func (l *Link) Status(ctx context.Context) (*pecanv1.StatusResponse, error) {
	return askFor(ctx, l, "get the status of", l.api.Status, &pecanv1.StatusRequest{})
}

// Explain returns why the steps of a job, given by id or name, run in their order.
func (l *Link) Explain(ctx context.Context, job string) (*pecanv1.ExplainResponse, error) {
	return askFor(ctx, l, "get the order of steps from", l.api.Explain, &pecanv1.ExplainRequest{Job: job})
}

const ChunkBytes = 1 << 20
