package control

import (
	"context"

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

// GetDataset returns what the dispatcher knows of a registered dataset.
func (l *Link) GetDataset(ctx context.Context, id string) (*pecanv1.GetDatasetResponse, error) {
	var answer *pecanv1.GetDatasetResponse
	err := l.Ask(ctx, "get the dataset from", func(ctx context.Context) error {
		var err error
		answer, err = l.api.GetDataset(ctx, &pecanv1.GetDatasetRequest{DatasetId: id})
		return err
	})
	return answer, err
}

// Status returns the dispatcher's status for operators.
func (l *Link) Status(ctx context.Context) (*pecanv1.StatusResponse, error) {
	var answer *pecanv1.StatusResponse
	err := l.Ask(ctx, "get the status of", func(ctx context.Context) error {
		var err error
		answer, err = l.api.Status(ctx, &pecanv1.StatusRequest{})
		return err
	})
	return answer, err
}

// Explain returns why the steps of a job, given by id or name, run in their order.
func (l *Link) Explain(ctx context.Context, job string) (*pecanv1.ExplainResponse, error) {
	var answer *pecanv1.ExplainResponse
	err := l.Ask(ctx, "get the order of steps from", func(ctx context.Context) error {
		var err error
		answer, err = l.api.Explain(ctx, &pecanv1.ExplainRequest{Job: job})
		return err
	})
	return answer, err
}

const ChunkBytes = 1 << 20
