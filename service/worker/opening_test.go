package worker

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// A stream waits for its turn if as many streams are being opened as there are cores. It does not wait forever,
// because an opening may hang.
func TestStreamsAreOpenedInTurns(t *testing.T) {
	w := startWorker(t, nil)
	until := make(chan struct{})
	useGraphs(w, stuck{w.streams.Graphs, until})
	for i := range runtime.NumCPU() {
		o := startCommand("stuck")
		o.Id.JobId, o.Lease = "stuck", uint64(100+i)
		o.Id.Stream = uint32(i)
		w.streams.Start(o)
	}
	waitFor(t, "as many are being opened as there are cores", func() bool { return len(w.streams.BeingOpened()) == runtime.NumCPU() })
	opened := func(o *pecanv1.StartStream) func() bool {
		return func() bool { return loadOf(w, o).GetOpened() }
	}
	patient := startCommand("thousand")
	begun := time.Now()
	w.streams.Start(patient)
	waitFor(t, "a stream is opened whose turn did not come", opened(patient))
	if waited := time.Since(begun); waited < time.Second {
		t.Errorf("it was opened after %v, out of turn", waited)
	}
	// On a busy machine, an opening may take as long as the wait for a turn.
	for n := uint32(1); ; n++ {
		next := startCommand("thousand")
		next.Id.Stream, next.Lease = n, patient.Lease+uint64(n)
		w.streams.Start(next)
		begun = time.Now()
		if n == 1 {
			close(until)
		}
		waitFor(t, "a stream is opened when it is its turn", opened(next))
		waited := time.Since(begun)
		if waited < time.Second {
			return
		}
		if n == 10 {
			t.Fatalf("each of %d streams was opened after more than a second, the last one after %v, though it was its turn", n, waited)
		}
	}
}

// loadOf returns what a heartbeat says of a stream; nil if the stream is not held.
func loadOf(w *Worker, o *pecanv1.StartStream) *pecanv1.WorkerHeartbeat_StreamLoad {
	for _, load := range w.streams.Loads() {
		if load.Lease == o.Lease {
			return load
		}
	}
	return nil
}

// The guard would blame an element for a worker's death while a graph is opened. So a suspicious element waits for
// openings, and openings wait for it.
func TestNoGraphIsOpenedWhileASuspiciousElementIsProduced(t *testing.T) {
	c := newCommander()
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	until := make(chan struct{})
	useGraphs(w, stuck{w.streams.Graphs, until})
	opens, suspicious := startCommand("stuck"), startCommand("thousand")
	opens.Id.JobId, opens.Lease = "opens", 1
	suspicious.Id.JobId, suspicious.Lease, suspicious.CrashGuard = "suspicious", 2, &pecanv1.CrashGuard{Below: 1}
	produced := func() bool { return loadOf(w, suspicious).GetProduced() > 0 }
	w.streams.Start(opens)
	waitFor(t, "a graph is being opened", func() bool { return len(w.streams.BeingOpened()) == 1 })
	w.streams.Start(suspicious)
	time.Sleep(300 * time.Millisecond)
	if produced() {
		t.Error("it was produced while a graph was opened")
	}
	close(until)
	waitFor(t, "it is produced", produced)
}

// stuck is a planner with a dataset whose opening hangs, as when a table is filled from a dead mount.
type stuck struct {
	dataset.Instantiator
	until chan struct{}
}

func (s stuck) Instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	if fingerprint == "stuck" {
		<-s.until
		fingerprint = "thousand"
	}
	return s.Instantiator.Instantiate(ctx, fingerprint, plan, at)
}

// A stream that must be opened alone waits for an opening that hangs. Other streams do not queue behind it.
func TestAStreamThatHangsWhileItIsOpenedHoldsNoOthersUp(t *testing.T) {
	c := newCommander()
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	until := make(chan struct{})
	useGraphs(w, stuck{w.streams.Graphs, until})
	hangs, exclusive, other := startCommand("stuck"), startCommand("thousand"), startCommand("thousand")
	for i, o := range []*pecanv1.StartStream{hangs, exclusive, other} {
		o.Id.JobId, o.Lease = fmt.Sprint("job", i), uint64(i+1)
	}
	exclusive.OpenExclusive = true
	defer close(until)
	w.streams.Start(hangs)
	waitFor(t, "it is being opened", func() bool { return len(w.streams.BeingOpened()) == 1 })
	w.streams.Start(exclusive)
	time.Sleep(50 * time.Millisecond)
	w.streams.Start(other)
	made := func(o *pecanv1.StartStream) bool { return loadOf(w, o).GetProduced() > 0 }
	for end := time.Now().Add(20 * time.Second); !made(other); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.streams.Stop(&pecanv1.StopStream{Id: other.Id})
			t.Fatal("a stream of another job is not opened")
		}
	}
	suspicious := startCommand("thousand")
	suspicious.Id.JobId, suspicious.Lease, suspicious.CrashGuard = "suspicious", 4, &pecanv1.CrashGuard{Below: 1}
	w.streams.Start(suspicious)
	waitFor(t, "a suspicious element is made", func() bool { return made(suspicious) })
	if made(exclusive) {
		t.Error("it was opened beside another")
	}
}
