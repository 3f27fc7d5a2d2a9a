package worker

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/checkpoint"
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
	data, err := os.ReadFile(filepath.Join("..", "..", "native", "tf", "testdata", "slow_shuffle.graph"))
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

func TestAStreamContinuesFromItsCheckpoint(t *testing.T) {
	type change = func(*testing.T, *pecanv1.StartStream)
	for name, c := range map[string]struct {
		change
		// pooled: the first worker has a pooled iterator. replaced: the checkpoint is that of another kind of iterator.
		pooled, replaced bool
	}{
		"of its own iterator":   {change: func(*testing.T, *pecanv1.StartStream) {}},
		"of a pooled iterator":  {change: divided, pooled: true},
		"of an earlier version": {change: divided, pooled: true, replaced: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, want := t.TempDir(), undisturbed(t, c.change)
			next := begun(t, dir, c.change)
			w := saving(t, dir)
			planned(t, w, "slow_shuffle")
			for _, file := range checkpointFiles(t, dir) {
				if originOf(t, file).GetPooled() != c.pooled {
					t.Error("the checkpoint is of the other kind")
				}
				if c.replaced {
					saveOwnIterator(t, w, next, file)
				}
			}
			w.streams.Start(next)
			if got := first(t, w, next, reached, 100); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("got %v\nwant %v", got, want)
			}
			recovery := recoveryOf(w)
			if recovery.Restored != 1 || recovery.Recomputed >= reached || recovery.Damaged != 0 {
				t.Fatal(recovery)
			}
			w.streams.Stop(&pecanv1.StopStream{Id: next.Id})
			waitFor(t, "checkpoints go with the epoch", func() bool { return len(checkpointFiles(t, dir)) == 0 })
		})
	}
}

// saveOwnIterator replaces a checkpoint by one at the same index of an iterator that runs only that stream.
func saveOwnIterator(t *testing.T, w *Worker, o *pecanv1.StartStream, file string) {
	t.Helper()
	header := originOf(t, file)
	header.Pooled = false
	graphs, err := w.streams.Graphs.Instantiate(t.Context(), o.GetFingerprint(), o.GetPlan(), rewrite.At{
		Stream: int(o.GetId().GetStream()), Start: header.GetStart(), Epoch: o.GetId().GetEpoch(), Seed: o.GetOptions().GetSeed(),
		Mode: o.GetOptions().GetMode(), Source: -1, Job: o.GetId().GetJobId(), Meters: "own_" + filepath.Base(file),
	})
	if err != nil {
		t.Fatal(err)
	}
	it, err := w.streams.Plain.NewIterator(graphs.A, []tf.DataType{tf.Int64})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	if _, err := it.Skip(int64(header.GetIndex())); err != nil {
		t.Fatal(err)
	}
	state, err := it.Save()
	if err != nil {
		t.Fatal(err)
	}
	defer state.Free()
	to := openDir(t, filepath.Dir(file))
	defer to.Close()
	if err := state.Write(func(data []byte) error { return to.Write(".", header, data) }); err != nil {
		t.Fatal(err)
	}
}

// D12: whatever happened to a checkpoint, the elements are right, and an invalid one is counted.
func TestAnUnusableCheckpointIsSkipped(t *testing.T) {
	change := func(edit func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, edit(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	flip := func(at int) func([]byte) []byte {
		return func(data []byte) []byte {
			data[(at+len(data))%len(data)] ^= 1
			return data
		}
	}
	want := undisturbed(t)
	for name, c := range map[string]struct {
		damage  func(*testing.T, string)
		ignored bool
	}{
		"empty":              {damage: change(func([]byte) []byte { return nil })},
		"short by a byte":    {damage: change(func(data []byte) []byte { return data[:len(data)-1] })},
		"long by a byte":     {damage: change(func(data []byte) []byte { return append(data, 0) })},
		"cut in its header":  {damage: change(func(data []byte) []byte { return data[:20] })},
		"a bit of the magic": {damage: change(flip(0))},
		"of another version": {damage: change(flip(4))},
		"a bit of its head":  {damage: change(flip(20))},
		"a bit of its state": {damage: change(flip(-1))},
		"a huge header": {damage: change(func(data []byte) []byte {
			binary.LittleEndian.PutUint32(data[8:], 1<<31)
			return data
		})},
		"another job's": {damage: func(t *testing.T, file string) {
			foreign := openDir(t, filepath.Dir(file))
			defer foreign.Close()
			_, state, err := foreign.Read(filepath.Base(file), originOf(t, file))
			if err != nil {
				t.Fatal(err)
			}
			header := originOf(t, file)
			header.Seed++
			if err := foreign.Write(".", header, state); err != nil {
				t.Fatal(err)
			}
		}},
		"under another index": {damage: func(t *testing.T, file string) {
			if err := os.Rename(file, filepath.Join(filepath.Dir(file), "1-1.checkpoint")); err != nil {
				t.Fatal(err)
			}
		}},
		"missing": {ignored: true, damage: func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}},
		"newer than the next index": {ignored: true, damage: func(t *testing.T, file string) {
			var index, lease uint64
			if _, err := fmt.Sscanf(filepath.Base(file), "%d-%d", &index, &lease); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file, filepath.Join(filepath.Dir(file), fmt.Sprintf("%d-%d%s", index+reached+1, lease, ".checkpoint"))); err != nil {
				t.Fatal(err)
			}
		}},
		"a link to elsewhere": {ignored: true, damage: func(t *testing.T, file string) {
			elsewhere := filepath.Join(t.TempDir(), "elsewhere")
			if err := os.Rename(file, elsewhere); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(elsewhere, file); err != nil {
				t.Fatal(err)
			}
		}},
		"a directory": {ignored: true, damage: func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			next := begun(t, dir)
			for _, file := range checkpointFiles(t, dir) {
				c.damage(t, file)
			}
			w := saving(t, dir)
			planned(t, w, "slow_shuffle")
			w.streams.Start(next)
			if got := first(t, w, next, reached, 100); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("got %v\nwant %v", got, want)
			}
			recovery := recoveryOf(w)
			if recovery.Restored != 0 || recovery.Recomputed != reached || (recovery.Damaged > 0) == c.ignored {
				t.Error(recovery)
			}
		})
	}
}

// D12: if a newer checkpoint is damaged, an older one is used.
func TestAnOlderCheckpointReplacesADamagedOne(t *testing.T) {
	dir, want := t.TempDir(), undisturbed(t)
	next := begun(t, dir)
	good := usable(t, dir)[0]
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	newer := filepath.Join(filepath.Dir(good), fmt.Sprintf("%d-99%s", reached, ".checkpoint"))
	if err := os.WriteFile(newer, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	w := saving(t, dir)
	planned(t, w, "slow_shuffle")
	w.streams.Start(next)
	if got := first(t, w, next, reached, 100); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v\nwant %v", got, want)
	}
	if recovery := recoveryOf(w); recovery.Restored != 1 || recovery.Damaged != 1 {
		t.Fatal(recovery)
	}
}

func openDir(t *testing.T, dir string) *checkpoint.Dir {
	t.Helper()
	opened, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// originOf reads a checkpoint's header without a check of its origin.
func originOf(t *testing.T, file string) *pecanv1.Checkpoint {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	header := new(pecanv1.Checkpoint)
	if err := proto.Unmarshal(data[12:12+binary.LittleEndian.Uint32(data[8:])], header); err != nil {
		t.Fatal(err)
	}
	return header
}

// A full disk and a missing directory fail at the same point: the file cannot be created.
func TestACheckpointThatCannotBeWrittenIsCounted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := saving(t, dir)
	o := planned(t, w, "slow_shuffle")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	w.streams.Start(o)
	first(t, w, o, 0, 300)
	waitFor(t, "it is counted", func() bool { return recoveryOf(w).GetNotSaved() > 0 })
	if recovery := recoveryOf(w); recovery.Saved != 0 {
		t.Fatal(recovery)
	}
}

func TestADepartingWorkerEndsItsStreamsAtTheirReadersPositions(t *testing.T) {
	dir := t.TempDir()
	w := saving(t, dir)
	w.config.DrainTimeout = deadline
	o := planned(t, w, "slow_shuffle")
	w.streams.Start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	w.session.mu.Lock()
	w.session.connected = true
	w.session.mu.Unlock()
	drained := make(chan struct{})
	count := uint64(0)
	for count < 300 {
		g, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		count += uint64(g.header.Count)
	}
	go func() {
		defer close(drained)
		w.drain(context.Background(), w.config.DrainTimeout)
		// The reader has everything, and would wait for more.
		if err := r.nc.SetReadDeadline(time.Now()); err != nil {
			t.Error(err)
		}
	}()
	for {
		r.credit(1, count, 1<<40)
		g, err := r.next()
		if err != nil {
			break
		}
		count += uint64(g.header.Count)
	}
	<-drained
	beat := w.heartbeat()
	if load := beat.Streams[0]; !beat.Leaving || !load.Drained || load.Unread || load.Acked != count || load.Produced != count {
		t.Fatalf("the reader has %d elements: %v", count, load)
	}
	successor := saving(t, dir)
	next := planned(t, successor, "slow_shuffle")
	next.Lease, next.AckedBelow = o.Lease+1, count
	successor.streams.Start(next)
	first(t, successor, next, count, 10)
	if recovery := recoveryOf(successor); recovery.Restored != 1 || recovery.Recomputed != 0 {
		t.Fatal(recovery)
	}
}
