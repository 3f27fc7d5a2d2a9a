package client

import (
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pecan-ml/pecan/native/buffer"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const testDeadline = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// value returns element i of a stream in tests. The value identifies stream and index.
func value(epoch uint64, stream uint32, i uint64) int64 {
	return int64(epoch)<<48 | int64(stream)<<32 | int64(i)
}

// spread assigns the streams to the workers in turn, under lease 1.
func spread(total uint32, workers ...*testWorker) func(uint64) *pecanv1.EpochUpdate {
	return func(uint64) *pecanv1.EpochUpdate {
		u := &pecanv1.EpochUpdate{TotalStreams: total, StreamsFinal: true}
		for s := range total {
			u.Streams = append(u.Streams, &pecanv1.ConsumerStream{Stream: s, Lease: 1, Assignment: 1, WorkerNumber: numberOf(workers[int(s)%len(workers)].address())})
		}
		return u
	}
}

// open connects to the dispatcher and creates a job. At the end of the test it closes both and checks for leaks.
func open(t testing.TB, d *testDispatcher, change ...func(*Config)) *Job {
	t.Helper()
	pool, err := buffer.NewPool(buffer.Config{Checked: true})
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Target: d.addr, Timeout: 5 * time.Second, Heartbeat: 20 * time.Millisecond, Pool: pool}
	for _, c := range change {
		c(&config)
	}
	before := openFiles(t)
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	s, err := Connect(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if leaks := config.Pool.Leaks(); len(leaks) > 0 {
			t.Errorf("%d buffers leaked, the first: %s", len(leaks), leaks[0])
		}
		if stats := config.Pool.Stats(); stats.Buffers != 0 || stats.Slots != 0 || stats.Misuses != 0 {
			t.Errorf("after close: %v", stats)
		}
		config.Pool.Close()
		// The other ends of the sockets are in this process too and close shortly afterwards.
		for deadline := time.Now().Add(testDeadline); openFiles(t) > before && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
		if after := openFiles(t); after > before {
			t.Errorf("%d files open, %d before", after, before)
		}
	})
	job, err := s.CreateJob(ctx, JobSpec{DatasetID: "f1"})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// got is an element that a test has read.
type got struct {
	epoch  uint64
	stream uint32
	index  uint64
	value  int64
	err    error
}

// read reads all elements with NextElement, and checks that each value fits its stream and index.
func read(t testing.TB, it *Iteration) ([]got, error) {
	t.Helper()
	return readUpTo(t, it, -1)
}

func readUpTo(t testing.TB, it *Iteration, limit int) ([]got, error) {
	t.Helper()
	var all []got
	deadline := time.Now().Add(testDeadline)
	for limit < 0 || len(all) < limit {
		if time.Now().After(deadline) {
			t.Fatalf("nothing more after %d elements; waiting: %s", len(all), waiting(it))
		}
		elements, status, err := it.NextElement(100 * time.Millisecond)
		switch status {
		case Ready:
			v := int64(binary.LittleEndian.Uint64(elements.Tensors[0].Data))
			all = append(all, got{epoch: elements.Epoch, stream: elements.Stream, index: elements.Index, value: v})
			if want := value(elements.Epoch, elements.Stream, elements.Index); v != want {
				t.Errorf("element %d of stream %d epoch %d is %x, want %x", elements.Index, elements.Stream, elements.Epoch, v, want)
			}
			elements.Release()
		case End:
			return all, nil
		case Failed, Broken:
			if status == Broken || !reason.Is(err, reason.ElementFailed) {
				return all, err
			}
			all = append(all, got{err: err})
		}
	}
	return all, nil
}

// wantAll checks that each stream returned elements 0 … count-1, each once and in order.
func wantAll(t testing.TB, all []got, counts ...uint64) {
	t.Helper()
	next := map[uint32]uint64{}
	for _, g := range all {
		if g.err != nil {
			continue
		}
		if g.index != next[g.stream] {
			t.Fatalf("stream %d gave element %d where %d was next", g.stream, g.index, next[g.stream])
		}
		next[g.stream]++
	}
	for s, count := range counts {
		if next[uint32(s)] != count {
			t.Errorf("stream %d gave %d elements, want %d", s, next[uint32(s)], count)
		}
	}
}

// waiting returns the reason for which an iteration waits.
func waiting(it *Iteration) string {
	why, _ := it.Waiting()
	return why
}

// eventually waits for a condition that another goroutine makes true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testDeadline); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("did not come about: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// same returns the same elements for every stream of every epoch.
func same(s testStream) func(uint64, uint32) (testStream, bool) {
	return func(uint64, uint32) (testStream, bool) { return s, true }
}
