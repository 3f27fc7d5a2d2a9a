package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/store"
)

// RegisterDataset implements the service. Nothing is stored before everything has been checked.
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
	// What is refused from here on leaves no graph behind.
	defer func() {
		if err != nil {
			d.forgetGraph(fingerprint)
		}
	}()
	d.holdGraph(fingerprint, 1)
	defer d.holdGraph(fingerprint, -1)
	if err := d.deps.Store.PutGraph(fingerprint, graph); err != nil {
		return d.storeError(err)
	}
	answer, err := d.submit(stream.Context(), core.AddDataset{
		WantedID: header.DatasetId, DerivedIDs: []string{fingerprint, fingerprint + "-" + specDigest(header.Spec)},
		Fingerprint: fingerprint, Spec: header.Spec, GraphBytes: int64(len(graph)),
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer.(*pecanv1.RegisterDatasetResponse))
}

// admitUpload takes the room for a graph, which the caller gives back. Uploads that stall must not keep others waiting for
// ever without a word.
func (d *Dispatcher) admitUpload(ctx context.Context, size int64) error {
	waiting, stop := context.WithTimeout(ctx, d.cfg.UploadWait)
	defer stop()
	err := d.uploads.Acquire(waiting, size)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return reason.From(ctx.Err())
	}
	return reason.New(reason.ServiceLimit,
		"register dataset: there was no room for %d bytes of graph in %v, because others are being uploaded (%d bytes at once, --max-upload-bytes); try again later",
		size, d.cfg.UploadWait, d.cfg.MaxUploadBytes)
}

type uploadStream = grpc.ClientStreamingServer[pecanv1.RegisterDatasetRequest, pecanv1.RegisterDatasetResponse]

// progressBytes is what an upload has to bring within its idle time: single bytes now and then would hold its room for ever.
const progressBytes = 1 << 20

// upload receives the parts of one upload, each in time, and none before it is asked for: an upload that waits to be admitted
// holds nothing but what the connection buffers.
type upload struct {
	want  chan<- struct{}
	parts <-chan part
	idle  time.Duration
	timer *time.Timer
	// fresh are the bytes that came since the time was last given anew.
	fresh int
}

type part struct {
	message *pecanv1.RegisterDatasetRequest
	err     error
}

// newUpload reads the stream in a goroutine of its own, which ends with the call: after the handler's return Recv fails.
func newUpload(stream uploadStream, idle time.Duration) (*upload, func()) {
	// A part that nobody takes any more does not block: there is room for the one that was asked for.
	want, parts := make(chan struct{}, 1), make(chan part, 1)
	go func() {
		for range want {
			message, err := stream.Recv()
			parts <- part{message, err}
		}
	}()
	u := &upload{want: want, parts: parts, idle: idle, timer: time.NewTimer(idle)}
	return u, func() {
		u.timer.Stop()
		close(want)
	}
}

// next is not called again after an error.
func (u *upload) next() (*pecanv1.RegisterDatasetRequest, error) {
	u.want <- struct{}{}
	select {
	case got := <-u.parts:
		if u.fresh += len(got.message.GetChunk()); u.fresh >= progressBytes || got.message.GetHeader() != nil {
			u.restart()
		}
		return got.message, got.err
	case <-u.timer.C:
		return nil, reason.New(reason.Unavailable, "register dataset: the upload brought less than %d bytes in %v, in which it must bring that much or end "+
			"(--upload-idle-timeout): try again over a connection that is faster than that", progressBytes, u.idle)
	}
}

// restart gives the time anew.
func (u *upload) restart() {
	u.fresh = 0
	u.timer.Reset(u.idle)
}

func (d *Dispatcher) receiveHeader(u *upload) (*pecanv1.RegisterDatasetRequest_Header, error) {
	message, err := u.next()
	if err != nil {
		return nil, endOfUpload(err)
	}
	header := message.GetHeader()
	if header == nil {
		return nil, reason.New(reason.BadArgument, "register dataset: the first message must be the header")
	}
	if header.DatasetId != "" {
		if err := d.check.dataset(header.DatasetId); err != nil {
			return nil, err
		}
	}
	switch {
	case header.GraphBytes > d.cfg.MaxGraphBytes:
		return nil, reason.New(reason.MessageTooLarge, "register dataset: the graph has %d bytes, the dispatcher takes at most %d (--max-graph-bytes); keep large constants in files instead of in the graph", header.GraphBytes, d.cfg.MaxGraphBytes)
	case header.GraphBytes < 1:
		return nil, reason.New(reason.GraphParse, "register dataset: the graph has %d bytes", header.GraphBytes)
	}
	return header, checkSpec(header.Spec)
}

// receiveGraph takes exactly size bytes. Memory grows with what arrives, not with what was announced.
func receiveGraph(u *upload, size int64) ([]byte, error) {
	// Waiting for room was not the upload's fault.
	u.restart()
	var graph []byte
	for {
		message, err := u.next()
		if errors.Is(err, io.EOF) {
			if int64(len(graph)) != size {
				return nil, reason.New(reason.BadArgument, "register dataset: %d bytes of graph came, the header announced %d", len(graph), size)
			}
			return graph, nil
		}
		if err != nil {
			return nil, endOfUpload(err)
		}
		chunk := message.GetChunk()
		switch {
		case message.GetHeader() != nil:
			return nil, reason.New(reason.BadArgument, "register dataset: a second header")
		case len(chunk) > maxChunkBytes:
			return nil, reason.New(reason.MessageTooLarge, "register dataset: a chunk of %d bytes, at most %d are taken", len(chunk), maxChunkBytes)
		case int64(len(graph))+int64(len(chunk)) > size:
			return nil, reason.New(reason.BadArgument, "register dataset: more than the announced %d bytes of graph", size)
		}
		graph = append(graph, chunk...)
	}
}

func endOfUpload(err error) error {
	if errors.Is(err, io.EOF) {
		return reason.New(reason.BadArgument, "register dataset: nothing was sent")
	}
	return err
}

// specDigest tells apart datasets with one graph whose elements are packed differently.
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

// holdGraph keeps a graph from being forgotten while it is being registered.
func (d *Dispatcher) holdGraph(fingerprint string, by int) {
	d.graphMu.Lock()
	defer d.graphMu.Unlock()
	if d.arriving[fingerprint] += by; d.arriving[fingerprint] == 0 {
		delete(d.arriving, fingerprint)
	}
}

// forgetGraph deletes a graph unless somebody has registered it again meanwhile.
func (d *Dispatcher) forgetGraph(fingerprint string) {
	d.graphMu.Lock()
	defer d.graphMu.Unlock()
	d.mu.Lock()
	used := d.core.State().UsesGraph(fingerprint)
	d.mu.Unlock()
	if used || d.arriving[fingerprint] > 0 {
		return
	}
	if err := d.deps.Store.DeleteGraph(fingerprint); err != nil {
		d.deps.Log.Warn("forgetting a graph failed", "fingerprint", fingerprint, "error", err)
	}
}

// forgetOrphans deletes graphs that were stored before a crash and belong to no dataset, because the record of theirs was never written.
func (d *Dispatcher) forgetOrphans() error {
	stored, err := d.deps.Store.Graphs()
	if err != nil {
		return err
	}
	for _, fingerprint := range stored {
		d.forgetGraph(fingerprint)
	}
	return nil
}

// storeError tells a peer that the store failed without telling it where it lies.
func (d *Dispatcher) storeError(err error) error {
	if errors.Is(err, store.ErrNoGraph) {
		return reason.New(reason.DatasetUnknown, "the graph is not stored here")
	}
	if errors.Is(err, store.ErrFull) {
		return diskFull()
	}
	d.deps.Log.Error("store failed", "error", err)
	if errors.Is(err, store.ErrDamaged) {
		return reason.New(reason.StoreCorrupt, "the dispatcher's store is damaged; its log says where")
	}
	return reason.New(reason.Unavailable, "the dispatcher's store failed; its log says why")
}

func (d *Dispatcher) dataset(id string) *pecanv1.StoredDataset {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.State().Dataset(id)
}

// GetDataset implements the service.
func (d *Dispatcher) GetDataset(_ context.Context, req *pecanv1.GetDatasetRequest) (*pecanv1.GetDatasetResponse, error) {
	if err := d.check.dataset(req.DatasetId); err != nil {
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
	if err := d.check.required("fingerprint", req.Fingerprint); err != nil {
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
		n := min(len(graph), maxChunkBytes)
		if err := stream.Send(&pecanv1.FetchGraphResponse{TotalBytes: total, Chunk: graph[:n]}); err != nil {
			return err
		}
		graph = graph[n:]
	}
	return nil
}
