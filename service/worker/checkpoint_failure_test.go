package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/checkpoint"
)

// between reads the elements [start, below) of a stream as text and acknowledges them. clean is what the reader
// reports as free of failures.
func between(t *testing.T, w *Worker, o *pecanv1.StartStream, start, clean, below uint64) []string {
	t.Helper()
	r := dialTCP(t, w)
	defer r.nc.Close()
	request := opening(o)
	request.StartIndex, request.CleanBelow = start, clean
	r.open(1, request)
	var out []string
	for start+uint64(len(out)) < below {
		g := mustNext(t, r)
		if g.failure != nil {
			out = append(out, string(g.failure.Reason))
		}
		for _, element := range g.elements {
			out = append(out, fmt.Sprint(element))
		}
		r.credit(1, min(start+uint64(len(out)), below), 1<<40)
	}
	r.handled()
	return out[:below-start]
}

// A failed element in a batch shifts the rows of later batches. A run that is restored after it knows that only
// from its checkpoint or its StartStream. No later run may start by index if that would skip rows.
func TestAFailureBeforeACheckpointIsRemembered(t *testing.T) {
	const failed, moved, again = 9, 100, 200
	quiet := startWorker(t, nil)
	o := planned(t, quiet, "failing_shuffle")
	if resume := o.Plan.Resume; resume.GetStrategy() != pecanv1.Resume_PARTIAL || !resume.GetCheckpoints() {
		t.Fatalf("the plan says %v", resume)
	}
	quiet.streams.Start(o)
	want := between(t, quiet, o, 0, 0, again+50)
	takeBack(t, quiet, o)
	for name, c := range map[string]struct {
		reported uint64
		older    bool
	}{
		"the header says it":                 {reported: 0},
		"of an older header, the order does": {reported: failed, older: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			w := saving(t, dir)
			o := planned(t, w, "failing_shuffle")
			w.streams.Start(o)
			between(t, w, o, 0, 0, moved)
			waitFor(t, "the run is saved after what failed", func() bool { return len(checkpointsBetween(t, dir, failed, moved)) > 0 })
			takeBack(t, w, o)
			if c.older {
				for _, file := range checkpointFiles(t, dir) {
					forgetClean(t, file)
				}
			}

			// This worker restores a checkpoint and takes none.
			w = startWorker(t, func(c *Config) { c.CheckpointDir, c.CheckpointInterval, c.CheckpointShare = dir, time.Hour, 1 })
			planned(t, w, "failing_shuffle")
			next := proto.Clone(o).(*pecanv1.StartStream)
			next.Lease, next.AckedBelow, next.CleanBelow = o.Lease+1, moved, c.reported
			w.streams.Start(next)
			if got := between(t, w, next, moved, 0, again); fmt.Sprint(got) != fmt.Sprint(want[moved:again]) {
				t.Fatalf("restored: got %v\nwant %v", got, want[moved:again])
			}
			if recovery := recoveryOf(w); recovery.Restored != 1 {
				t.Fatal(recovery)
			}
			load := w.streams.Loads()[0]
			if load.Acked != again || load.CleanBelow != failed {
				t.Errorf("%d have arrived, %d failed: %v", again, failed, load)
			}
			if err := os.RemoveAll(filepath.Join(dir, checkpoint.StreamDir(w.identity.Cluster(), o.Id))); err != nil {
				t.Fatal(err)
			}
			if got := between(t, w, next, again-20, failed, again+20); fmt.Sprint(got) != fmt.Sprint(want[again-20:again+20]) {
				t.Errorf("begun again for a reader that wants less: got %v\nwant %v", got, want[again-20:again+20])
			}
			takeBack(t, w, next)

			w = startWorker(t, nil)
			planned(t, w, "failing_shuffle")
			next.Lease, next.AckedBelow, next.CleanBelow = next.Lease+1, load.Acked, load.CleanBelow
			w.streams.Start(next)
			if got := between(t, w, next, again, 0, again+50); fmt.Sprint(got) != fmt.Sprint(want[again:]) {
				t.Errorf("begun by arithmetic: got %v\nwant %v", got, want[again:])
			}
			takeBack(t, w, next)
		})
	}
}

// takeBack ends a stream whose epoch continues elsewhere.
// A pooled iterator has no dataset before its first element. A state from then would restore a stream without elements.
func TestAStreamThatEndsBeforeItsFirstElementIsNotSaved(t *testing.T) {
	const start, read = 20, 10
	command := func(w *Worker) *pecanv1.StartStream {
		o := planned(t, w, "failing_shuffle")
		divided(t, o)
		if resume := o.Plan.Resume; resume.GetStrategy() != pecanv1.Resume_PARTIAL || !resume.GetCheckpoints() {
			t.Fatalf("the plan says %v", resume)
		}
		o.AckedBelow, o.CleanBelow = start, start
		return o
	}
	quiet := startWorker(t, nil)
	o := command(quiet)
	quiet.streams.Start(o)
	want := between(t, quiet, o, start, start, start+read)
	takeBack(t, quiet, o)

	dir := t.TempDir()
	w := saving(t, dir)
	o = command(w)
	w.streams.Start(o)
	w.streams.Mute()
	waitFor(t, "the run produces no more", func() bool { drained, _ := w.streams.Drain(false); return drained })
	if load := w.streams.Loads()[0]; load.Produced != start || w.streams.Load().PooledIterators != 1 {
		t.Fatalf("the stream has begun, or has an iterator of its own: %v", load)
	}
	takeBack(t, w, o)

	successor := saving(t, dir)
	next := command(successor)
	next.Lease = o.Lease + 1
	successor.streams.Start(next)
	if got := between(t, successor, next, start, start, start+read); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v\nwant %v", got, want)
	}
	if recovery := recoveryOf(successor); recovery.Restored != 0 {
		t.Fatal(recovery)
	}
}

func takeBack(t *testing.T, w *Worker, o *pecanv1.StartStream) {
	t.Helper()
	w.streams.Stop(&pecanv1.StopStream{Id: o.Id, Lease: o.Lease})
	w.running.Wait()
	// The connection of its reader may still hold elements that it was about to send.
	waitFor(t, "its elements are freed", func() bool { return tf.LiveTensors() == 0 })
}

// forgetClean removes the record of failures from a header, as in older headers.
func forgetClean(t *testing.T, file string) {
	t.Helper()
	c := openDir(t, filepath.Dir(file))
	defer c.Close()
	header, state, err := c.Read(filepath.Base(file), originOf(t, file))
	if err != nil {
		t.Fatal(err)
	}
	header.CleanBelow = 0
	if err := c.Write(".", header, state); err != nil {
		t.Fatal(err)
	}
}
