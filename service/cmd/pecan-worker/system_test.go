package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pecan-ml/pecan/native/client"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/store"
	"github.com/pecan-ml/pecan/service/worker"
)

// TestMain looks for leaked goroutines. TensorFlow may need a minute to end the autotuning of an idle iterator. A worker that stops
// waits for 5 s, and its process then ends without the iterator.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/pecan-ml/pecan/native/tf._Cfunc_pecan_delete_iterator"))
}

// deadline bounds every wait of a test.
const deadline = 30 * time.Second

func testLog() *slog.Logger {
	if os.Getenv("PECAN_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

// system is a dispatcher with workers, all in this process.
type system struct {
	t          *testing.T
	dispatcher string
	// workDir is what a dispatcher that is started again finds.
	workDir        string
	stopDispatcher func()
	session        *client.Session
}

// startSystem runs a dispatcher and n workers and connects to them.
func startSystem(t *testing.T, n int) *system {
	t.Helper()
	s := &system{t: t, workDir: t.TempDir()}
	s.dispatcher, s.stopDispatcher = startDispatcher(t, "127.0.0.1:0", s.workDir)
	for range n {
		s.addWorker()
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	session, err := client.Connect(ctx, client.Config{Target: s.dispatcher, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	s.session = session
	return s
}

func startDispatcher(t *testing.T, address, workDir string) (served string, stop func()) {
	t.Helper()
	kept, err := store.Open(store.Options{Dir: workDir, Log: testLog()})
	if err != nil {
		t.Fatal(err)
	}
	config := dispatcher.DefaultConfig()
	config.Version = "test"
	d, err := dispatcher.New(config, dispatcher.Deps{
		Store: kept, Graphs: dispatcher.NewGraphs(config), Clock: clock.System(), Rand: rand.Reader, Log: testLog(),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String(), background(t, func(ctx context.Context) error {
		return errors.Join(d.Serve(ctx, listener), kept.Close())
	})
}

// background runs f until the test ends.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(deadline):
			t.Error("does not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

func (s *system) addWorker() (stop func()) {
	s.t.Helper()
	ready := make(chan string, 1)
	config := worker.Config{
		Dispatcher: s.dispatcher, Listen: "127.0.0.1:0", MaxStreams: 2, WindowBytes: 32 << 20, SlotBytes: 64 << 20,
		Kind: worker.KindLocal, DispatcherTimeout: deadline, Threads: 2, Version: "test", Log: testLog(),
		Ready: func(address string) { ready <- address },
	}
	stop = background(s.t, func(ctx context.Context) error { return worker.Run(ctx, config) })
	select {
	case <-ready:
	case <-time.After(deadline):
		s.t.Fatal("the worker does not register")
	}
	return stop
}

// job registers a graph of native/tf/testdata and opens a job on it.
func (s *system) job(name string, components []*pecanv1.ComponentSpec) *client.Job {
	s.t.Helper()
	graph, err := os.ReadFile(filepath.Join("..", "..", "..", "native", "tf", "testdata", name+".graph"))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), deadline)
	defer cancel()
	id, _, err := s.session.RegisterDataset(ctx, graph, &pecanv1.DatasetSpec{Components: components}, "")
	if err != nil {
		s.t.Fatal(err)
	}
	job, err := s.session.CreateJob(ctx, client.JobSpec{DatasetID: id, Options: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { job.Close() })
	return job
}

func waiting(it *client.Iteration) string {
	why, _ := it.Waiting()
	return why
}

// drain reads a pass to its end: the rows of the first component of every element, and the errors of elements.
func drain(t *testing.T, it *client.Iteration) (elements [][]int64, failures []error) {
	t.Helper()
	end := time.Now().Add(deadline)
	for {
		if time.Now().After(end) {
			t.Fatalf("%d elements after %v; waiting: %s", len(elements), deadline, waiting(it))
		}
		rows, status, err := it.NextElement(100 * time.Millisecond)
		switch status {
		case client.Ready:
			data := rows.Tensors[0].Data
			values := make([]int64, len(data)/8)
			for i := range values {
				values[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
			}
			elements = append(elements, values)
			rows.Release()
		case client.End:
			return elements, failures
		case client.Failed, client.Broken:
			failures = append(failures, err)
			if len(failures) > 100 {
				t.Fatal(failures[0])
			}
		}
	}
}

func int64s(dims ...int64) *pecanv1.ComponentSpec {
	return &pecanv1.ComponentSpec{Dtype: 9, Dims: dims}
}

func TestEveryElementComesOnceThroughRealProcesses(t *testing.T) {
	cases := map[string]struct {
		graph      string
		components []*pecanv1.ComponentSpec
		// batch is the rows of a full batch, 0 without one; rows the values of all elements.
		batch int
		rows  []int64
	}{
		"a range in streams": {graph: "thousand", components: []*pecanv1.ComponentSpec{int64s()}, rows: upTo(1000, every)},
		"batches whose rows a filter counts": {
			graph: "remainder", components: []*pecanv1.ComponentSpec{int64s(-1)}, batch: 10, rows: upTo(1003, notThree),
		},
		"a map above such batches": {
			graph: "closing", components: []*pecanv1.ComponentSpec{int64s(-1), {Dtype: 1, Dims: []int64{-1}}}, batch: 10, rows: upTo(1003, notThree),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := startSystem(t, 2)
			job := s.job(c.graph, c.components)
			t.Logf("plan: %d streams, %v, %v", job.Plan().GetNumStreams(), job.Plan().GetBatchStrategy(), job.Plan().GetReasons())
			for epoch := range 2 {
				it := job.Open(client.IterOptions{})
				elements, failures := drain(t, it)
				it.Close()
				if len(failures) > 0 {
					t.Fatal(failures[0])
				}
				check(t, epoch, c.batch, c.rows, elements)
			}
		})
	}
}

func check(t *testing.T, epoch, batch int, want []int64, elements [][]int64) {
	t.Helper()
	var got []int64
	short := 0
	for _, element := range elements {
		got = append(got, element...)
		if batch > 0 && len(element) != batch {
			short++
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("epoch %d: %d rows came, %d were expected", epoch, len(got), len(want))
	}
	if batch > 0 && short > 1 || batch > 0 && len(elements) != (len(want)+batch-1)/batch {
		t.Errorf("epoch %d: %d batches, %d of them short", epoch, len(elements), short)
	}
}

func every(int64) bool { return true }

func notThree(i int64) bool { return i%3 != 0 }

func upTo(n int64, keep func(int64) bool) []int64 {
	var out []int64
	for i := range n {
		if keep(i) {
			out = append(out, i)
		}
	}
	return out
}

// take reads n elements of a pass.
func take(t *testing.T, it *client.Iteration, n int) (elements [][]int64) {
	t.Helper()
	end := time.Now().Add(deadline)
	for len(elements) < n {
		rows, status, err := it.NextElement(100 * time.Millisecond)
		if err != nil || status == client.End || time.Now().After(end) {
			t.Fatalf("after %d elements: %v, %v, waiting: %s", len(elements), status, err, waiting(it))
		}
		if status != client.Ready {
			continue
		}
		values := make([]int64, len(rows.Tensors[0].Data)/8)
		for i := range values {
			values[i] = int64(binary.LittleEndian.Uint64(rows.Tensors[0].Data[8*i:]))
		}
		elements = append(elements, values)
		rows.Release()
	}
	return elements
}

func TestNothingIsLostWhenAProcessGoesInTheMiddleOfAnEpoch(t *testing.T) {
	cases := map[string]func(s *system, stopWorker func()){
		"a worker stops": func(_ *system, stopWorker func()) { stopWorker() },
		"a worker stops and another comes": func(s *system, stopWorker func()) {
			stopWorker()
			s.addWorker()
		},
		"the dispatcher comes back": func(s *system, _ func()) {
			s.stopDispatcher()
			_, s.stopDispatcher = startDispatcher(s.t, s.dispatcher, s.workDir)
		},
	}
	for name, harm := range cases {
		t.Run(name, func(t *testing.T) {
			s := startSystem(t, 1)
			stop := s.addWorker()
			job := s.job("closing", []*pecanv1.ComponentSpec{int64s(-1), {Dtype: 1, Dims: []int64{-1}}})
			it := job.Open(client.IterOptions{MaxOutstandingBytes: 1000})
			defer it.Close()
			first := take(t, it, 5)
			harm(s, stop)
			rest, failures := drain(t, it)
			if len(failures) > 0 {
				t.Fatal(failures[0])
			}
			check(t, 0, 10, upTo(1003, notThree), append(first, rest...))
		})
	}
}
