package worker

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	"go.uber.org/goleak"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline bounds every wait of a test.
const deadline = time.Minute

// files is a planner that finds graphs by name: the fingerprint is the name of a graph in native/tf/testdata.
// The graph of the closing stream has that name with a suffix.
type files struct{}

func (files) Instantiate(_ context.Context, fingerprint string, _ *pecanv1.Plan, _ rewrite.At) (*rewrite.StreamGraphs, error) {
	data, err := os.ReadFile(filepath.Join("..", "..", "native", "tf", "testdata", fingerprint+".graph"))
	return &rewrite.StreamGraphs{A: data}, err
}

func (files) Files(context.Context, string, *pecanv1.Plan, split.EpochStream) []string { return nil }

func testConfig() Config {
	return Config{
		Dispatcher: "127.0.0.1:1", Listen: "127.0.0.1:0", MaxStreams: 4, WindowBytes: 64 << 20, SlotBytes: 256 << 20,
		Kind: KindLocal, DispatcherTimeout: deadline, Threads: 2, Version: "test",
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// startWorker starts a worker without a dispatcher.
func startWorker(t testing.TB, change func(*Config)) *Worker {
	t.Helper()
	config := testConfig()
	if change != nil {
		change(&config)
	}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	tensors, descriptors := tf.LiveTensors(), openFiles(t)
	w, err := start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	useGraphs(w, files{})
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
		// An earlier worker of the same test may have freed tensors since.
		if now := tf.LiveTensors(); now > tensors {
			t.Errorf("%d tensors leaked", now-tensors)
		}
		if now := openFiles(t); now > descriptors+4 {
			t.Errorf("%d descriptors are open, %d were", now, descriptors)
		}
	})
	return w
}

// useGraphs replaces the source of a worker's graphs.
func useGraphs(w *Worker, graphs dataset.Instantiator) {
	w.streams.Graphs, w.trials.Graphs = graphs, graphs
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func startCommand(name string) *pecanv1.StartStream {
	return &pecanv1.StartStream{
		Id: &pecanv1.StreamId{JobId: "job", Epoch: 1, Stream: 0}, Lease: 7, Fingerprint: name,
		Plan: &pecanv1.Plan{NumStreams: 1, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT}, Options: &pecanv1.JobOptions{}, MayRunInline: true,
	}
}

func opening(o *pecanv1.StartStream) *pecanv1.OpenStream {
	return &pecanv1.OpenStream{Id: o.GetId(), Lease: o.GetLease(), Credit: 1 << 40}
}

// value is one component as it arrived.
type value struct {
	dtype uint32
	dims  []uint64
	bytes []byte
}

func (v value) int64(t testing.TB) int64 {
	t.Helper()
	if len(v.bytes) != 8 {
		t.Fatalf("%d bytes are no int64", len(v.bytes))
	}
	return int64(binary.LittleEndian.Uint64(v.bytes))
}

// strings splits a string tensor.
func (v value) strings() []string {
	n, _ := frame.Elements(v.dims)
	at := n * 8
	var out []string
	for i := range n {
		size := binary.LittleEndian.Uint64(v.bytes[i*8:])
		out = append(out, string(v.bytes[at:at+size]))
		at += size
	}
	return out
}

// waitFor polls a condition that becomes true by itself.
func waitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	end := time.Now().Add(deadline)
	for !condition() {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", deadline, what)
		}
		time.Sleep(time.Millisecond)
	}
}
