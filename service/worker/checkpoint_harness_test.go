package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// saving is a worker that often takes checkpoints in a directory.
func saving(t *testing.T, dir string) *Worker {
	return startWorker(t, func(c *Config) {
		// A small window keeps the run near its reader.
		c.CheckpointDir, c.CheckpointInterval, c.CheckpointShare, c.WindowBytes = dir, 20*time.Millisecond, 1, 1<<20
	})
}

// first reads elements from an index on, returns their values and closes its connection.
func first(t *testing.T, w *Worker, o *pecanv1.StartStream, start uint64, count int) []int64 {
	t.Helper()
	r := dialTCP(t, w)
	defer r.nc.Close()
	request := opening(o)
	request.StartIndex = start
	r.open(1, request)
	var out []int64
	for len(out) < count {
		g, err := r.next()
		if err != nil || g.failure != nil {
			t.Fatal(err, g.failure)
		}
		for _, element := range g.elements {
			out = append(out, element[0].int64(t))
		}
		r.credit(1, start+uint64(len(out)), 1<<40)
	}
	r.handled()
	return out[:count]
}

// checkpointFiles are the checkpoints in a directory.
func checkpointFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.checkpoint"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// reached is the index of the first worker's reader when its stream moves.
const reached = 300

// slowShuffle returns a StartStream of a dataset whose plan can be changed.
func slowShuffle(t *testing.T, w *Worker, change ...func(*testing.T, *pecanv1.StartStream)) *pecanv1.StartStream {
	t.Helper()
	o := planned(t, w, "slow_shuffle")
	for _, c := range change {
		c(t, o)
	}
	return o
}

// divided divides the dataset into four streams, which run in pooled iterators.
func divided(t *testing.T, o *pecanv1.StartStream) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "native", "tf", "testdata", o.GetFingerprint()+".graph"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := graph.Parse(data, graph.PeerLimits())
	if err != nil {
		t.Fatal(err)
	}
	o.Options.Mode = pecanv1.Mode_MODE_DETERMINISTIC
	if o.Plan, err = split.MakePlan(parsed, o.Options, split.Env{}); err != nil {
		t.Fatal(err)
	}
	o.Plan.NumStreams = 4
	o.Plan.Hash = split.PlanHash(o.Plan)
}

// begun runs a stream on a first worker until its reader has passed a checkpoint. It returns the StartStream for
// a second worker.
func begun(t *testing.T, dir string, change ...func(*testing.T, *pecanv1.StartStream)) (next *pecanv1.StartStream) {
	t.Helper()
	w := saving(t, dir)
	o := slowShuffle(t, w, change...)
	if o.Plan.Resume.GetStrategy() != pecanv1.Resume_RECOMPUTE || !o.Plan.Resume.GetCheckpoints() {
		t.Fatalf("the plan says %v", o.Plan.Resume)
	}
	w.streams.Start(o)
	first(t, w, o, 0, reached)
	waitFor(t, "the run is saved", func() bool { return recoveryOf(w).GetSaved() > 1 && len(usable(t, dir)) > 0 })
	takeBack(t, w, o)
	next = proto.Clone(o).(*pecanv1.StartStream)
	next.Lease, next.AckedBelow = o.Lease+1, reached
	return next
}

// usable are the checkpoints at or below the index that was reached.
func usable(t *testing.T, dir string) []string { return checkpointsBetween(t, dir, 0, reached) }

// checkpointsBetween are the checkpoints after one index, up to another.
func checkpointsBetween(t *testing.T, dir string, above, upTo uint64) []string {
	t.Helper()
	var out []string
	for _, file := range checkpointFiles(t, dir) {
		var index uint64
		if _, err := fmt.Sscanf(filepath.Base(file), "%d-", &index); err != nil {
			t.Fatal(err)
		}
		if above < index && index <= upTo {
			out = append(out, file)
		}
	}
	return out
}

// undisturbed returns the elements after that index of a stream that was not moved.
func undisturbed(t *testing.T, change ...func(*testing.T, *pecanv1.StartStream)) []int64 {
	t.Helper()
	w := startWorker(t, nil)
	o := slowShuffle(t, w, change...)
	w.streams.Start(o)
	out := first(t, w, o, 0, reached+100)[reached:]
	// A live run holds a tensor at times, and other workers' tensors are counted too.
	takeBack(t, w, o)
	return out
}
