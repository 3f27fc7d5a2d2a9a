package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
	"github.com/pecan-ml/pecan/service/store"
)

// RegisterDataset implements the service. It stores nothing before all checks.
func (d *Dispatcher) RegisterDataset(stream uploadStream) (err error) {
	u, stop := newUpload(stream, d.cfg.UploadIdle)
	defer stop()
	header, err := d.receiveHeader(u)
	if err != nil {
		return err
	}
	if err := d.admitUpload(stream.Context(), header.GraphBytes); err != nil {
		return err
	}
	defer d.uploads.Release(header.GraphBytes)
	graph, err := receiveGraph(u, header.GraphBytes)
	if err != nil {
		return err
	}
	fingerprint, err := d.deps.Graphs.Check(graph, header.Spec.Components)
	if err != nil {
		return err
	}
	// A later refusal must leave no graph behind.
	defer func() {
		if err != nil {
			d.removeGraph(fingerprint)
		}
	}()
	d.holdGraph(fingerprint, 1)
	defer d.holdGraph(fingerprint, -1)
	if err := d.deps.Store.PutGraph(fingerprint, graph); err != nil {
		return d.storeError(err)
	}
	answer, err := d.submit(stream.Context(), core.AddDataset{
		WantedID: header.DatasetId, DerivedIDs: []string{fingerprint, fingerprint + "-" + specDigest(header.Spec)},
		Fingerprint: fingerprint, Spec: header.Spec, GraphBytes: int64(len(graph)), Learned: d.kept(fingerprint),
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer.(*pecanv1.RegisterDatasetResponse))
}

// GetDataset implements the service.
func (d *Dispatcher) GetDataset(_ context.Context, req *pecanv1.GetDatasetRequest) (*pecanv1.GetDatasetResponse, error) {
	if err := d.check.DatasetID(req.DatasetId); err != nil {
		return nil, err
	}
	dataset := d.dataset(req.DatasetId)
	if dataset == nil {
		return nil, reason.New(reason.DatasetUnknown, "dataset id %s not found. It must be registered with register_dataset first", req.DatasetId)
	}
	return &pecanv1.GetDatasetResponse{
		DatasetId: dataset.DatasetId, Fingerprint: dataset.Fingerprint, Spec: dataset.Spec, GraphBytes: dataset.GraphBytes,
	}, nil
}

// FetchGraph implements the service.
func (d *Dispatcher) FetchGraph(req *pecanv1.FetchGraphRequest, stream grpc.ServerStreamingServer[pecanv1.FetchGraphResponse]) error {
	if err := d.check.Required("fingerprint", req.Fingerprint); err != nil {
		return err
	}
	d.mu.Lock()
	used := d.core.State().UsesGraph(req.Fingerprint)
	d.mu.Unlock()
	if !used {
		return reason.New(reason.DatasetUnknown, "fetch graph: no dataset has the fingerprint %s", req.Fingerprint)
	}
	graph, err := d.deps.Store.Graph(req.Fingerprint)
	if err != nil {
		return d.storeError(err)
	}
	total := int64(len(graph))
	for len(graph) > 0 {
		n := min(len(graph), validate.MaxChunkBytes)
		if err := stream.Send(&pecanv1.FetchGraphResponse{TotalBytes: total, Chunk: graph[:n]}); err != nil {
			return err
		}
		graph = graph[n:]
	}
	return nil
}

func (d *Dispatcher) dataset(id string) *pecanv1.StoredDataset {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.State().Dataset(id)
}

// specDigest distinguishes datasets of one graph whose elements are packed differently.
func specDigest(spec *pecanv1.DatasetSpec) string {
	plain := proto.Clone(spec).(*pecanv1.DatasetSpec)
	plain.TensorflowVersion = ""
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(plain)
	if err != nil {
		return "invalid"
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// holdGraph protects a graph from removal while it is being registered.
func (d *Dispatcher) holdGraph(fingerprint string, by int) {
	d.graphMu.Lock()
	defer d.graphMu.Unlock()
	if d.registering[fingerprint] += by; d.registering[fingerprint] == 0 {
		delete(d.registering, fingerprint)
	}
}

// removeGraph deletes a graph unless it was registered again meanwhile.
func (d *Dispatcher) removeGraph(fingerprint string) {
	d.graphMu.Lock()
	defer d.graphMu.Unlock()
	d.mu.Lock()
	used := d.core.State().UsesGraph(fingerprint)
	d.mu.Unlock()
	if used || d.registering[fingerprint] > 0 {
		return
	}
	if err := d.deps.Store.DeleteGraph(fingerprint); err != nil {
		d.deps.Log.Warn("removing a graph failed", "fingerprint", fingerprint, "error", err)
	}
}

// removeOrphans deletes graphs without a dataset: a crash came between storing the graph and writing its record.
func (d *Dispatcher) removeOrphans() error {
	stored, err := d.deps.Store.Graphs()
	if err != nil {
		return err
	}
	for _, fingerprint := range stored {
		d.removeGraph(fingerprint)
	}
	return nil
}

// storeError is a store's error for peers. It does not reveal the path of the store.
func (d *Dispatcher) storeError(err error) error {
	if errors.Is(err, store.ErrNoGraph) {
		return reason.New(reason.DatasetUnknown, "the graph is not stored here")
	}
	if errors.Is(err, store.ErrFull) {
		return diskFull()
	}
	d.deps.Log.Error("the store failed", "error", err)
	if errors.Is(err, store.ErrDamaged) {
		return reason.New(reason.StoreCorrupt, "the dispatcher's store is damaged; its log says where")
	}
	return reason.New(reason.Unavailable, "the dispatcher's store failed; its log has the cause")
}
