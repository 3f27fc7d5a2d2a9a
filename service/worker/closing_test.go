package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// inStreams gives a worker the graphs that match a pattern. It returns the StartStream of a stream of one of them, which is
// divided into this many streams.
func inStreams(t *testing.T, w *Worker, pattern, name string, streams int32) *pecanv1.StartStream {
	t.Helper()
	graphs := dataset.NewStore(func(_ context.Context, name string) ([]byte, error) { return os.ReadFile(fmt.Sprintf(pattern, name)) })
	useGraphs(w, byName{graphs})
	parsed, err := graphs.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	o := startCommand(name)
	o.Options.Streams = streams
	if o.Plan, err = split.MakePlan(parsed, o.Options, split.Env{}); err != nil || o.Plan.GetNumStreams() != streams {
		t.Fatal(o.Plan, err)
	}
	return o
}

// source returns the remainder of a stream that has ended on this worker, as the dispatcher names it to a closing stream.
func source(t *testing.T, w *Worker, stream uint32) *pecanv1.RemainderSource {
	t.Helper()
	held := w.streams.HeldStreams()
	at := slices.IndexFunc(held, func(h *pecanv1.HeldStream) bool { return h.Id.Stream == stream })
	if at < 0 || !held[at].Ended {
		t.Fatalf("stream %d has not ended: %v", stream, held)
	}
	return &pecanv1.RemainderSource{
		Stream: stream, Lease: held[at].Lease, Worker: &pecanv1.WorkerAddress{WorkerId: w.identity.ID()}, Ready: true, Rows: held[at].RemainderRows,
	}
}

// batchesOf runs a stream to its end and returns its batches. The stream is still held then.
func batchesOf(t *testing.T, w *Worker, o *pecanv1.StartStream) (batches [][]value) {
	t.Helper()
	w.streams.Start(proto.Clone(o).(*pecanv1.StartStream))
	r := dialTCP(t, w)
	defer r.nc.Close()
	r.open(1, opening(o))
	batches, failures, _ := r.stream(0)
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	waitFor(t, "the run to return its iterators", func() bool { return w.streams.Load().Running == 0 })
	return batches
}

// The closing streams of groups run in pooled iterators, which further epochs use too.
func TestClosingStreamsShareIterators(t *testing.T) {
	for name, perEpoch := range map[string]uint64{
		// Streams, the closing streams of groups, and the last closing stream have one graph each. With a step downstream of the
		// batch, the first two have the same graph for that step.
		"filter_batch": 3, "filter_batch_map": 4,
	} {
		w := startWorker(t, nil)
		o := inStreams(t, w, filepath.Join("..", "graph", "testdata", "%s.pb"), name, 40)
		first := uint64(0)
		for epoch := range uint64(2) {
			o.Id.Epoch = epoch
			rows, short := 0, 0
			for stream := range o.Plan.TotalStreams() {
				o.Id.Stream, o.Lease = stream, 100*epoch+uint64(stream)+1
				o.Closing, o.Remainders = o.Plan.IsClosing(stream), nil
				if o.Closing {
					from, below := o.Plan.Sources(stream)
					for each := range below - from {
						o.Remainders = append(o.Remainders, source(t, w, from+each))
					}
				}
				for _, batch := range batchesOf(t, w, o) {
					if rows += int(batch[0].dims[0]); batch[0].dims[0] < 8 {
						short++
					}
				}
			}
			want := map[string][2]int{"filter_batch": {32, 0}, "filter_batch_map": {34, 1}}[name]
			if got := [2]int{rows, short}; got != want {
				t.Errorf("%s: %d rows and %d short batches, want %v", name, rows, short, want)
			}
			w.streams.StopAll(reason.New(reason.Closed, "the test is over"))
			if epoch == 0 {
				first = w.streams.Load().PooledIterators
			}
		}
		if all := w.streams.Load().PooledIterators; first != perEpoch || all != first {
			t.Errorf("%s: the first epoch made %d pooled iterators, and both %d", name, first, all)
		}
	}
}

// A closing stream that waits for a remainder lets the stream of that remainder be opened alone, on the same worker.
func TestAClosingStreamThatWaitsHoldsNoOpeningsUp(t *testing.T) {
	c := newCommander()
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	o := inStreams(t, w, filepath.Join("..", "graph", "testdata", "%s.pb"), "filter_batch_map", 7)
	closing := startCommand("filter_batch_map")
	closing.Plan, closing.Options, closing.Closing = o.Plan, o.Options, true
	closing.Id.Stream, closing.Lease = uint32(o.Plan.NumStreams), 8
	for stream := range uint32(o.Plan.NumStreams) {
		closing.Remainders = append(closing.Remainders, &pecanv1.RemainderSource{Stream: stream})
	}
	w.streams.Start(closing)
	waitFor(t, "the closing stream is opened", func() bool { return loadOf(w, closing).GetOpened() })
	time.Sleep(100 * time.Millisecond)
	o.OpenExclusive = true
	w.streams.Start(o)
	opened := time.Now()
	for !loadOf(w, o).GetOpened() {
		if time.Since(opened) > 20*time.Second {
			w.streams.StopAll(reason.New(reason.Closed, "the test is over"))
			t.Fatal("the stream whose remainder is missing is not opened")
		}
		time.Sleep(time.Millisecond)
	}
}

// If the first element of a pooled stream fails, the stream begins again in an iterator of its own. What it kept back in
// the first attempt must not be kept back twice.
func TestARemainderIsKeptOnceIfTheFirstBatchFails(t *testing.T) {
	w := startWorker(t, nil)
	o := inStreams(t, w, filepath.Join("testdata", "%s.graph"), "first_batch_fails", 7)
	for stream := range uint32(o.Plan.NumStreams) {
		o.Id.Stream, o.Lease = stream, uint64(stream)+1
		w.streams.Start(proto.Clone(o).(*pecanv1.StartStream))
		r := dialTCP(t, w)
		r.open(1, opening(o))
		batches, failures, _ := r.stream(0)
		waitFor(t, "the run ends", func() bool { return w.streams.Load().Running == 0 })
		kept := source(t, w, stream).Rows
		if rows := 8*uint64(len(batches)) + kept; rows < 14 || rows > 15 {
			t.Errorf("stream %d has %d batches and %d rows in its remainder, and 14 or 15 rows in all", stream, len(batches), kept)
		}
		if stream == 0 && len(failures) != 1 {
			t.Errorf("%d batches failed", len(failures))
		}
	}
}
