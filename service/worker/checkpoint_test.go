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
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/worker/checkpoint"
)

func TestAStreamContinuesFromItsCheckpoint(t *testing.T) {
	type change = func(*testing.T, *pecanv1.StartStream)
	for name, c := range map[string]struct {
		change
		// pooled is set if the first worker has a pooled iterator. replaced is set if another kind of iterator wrote the
		// checkpoint.
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

// The pooled iterator into which a checkpoint was restored runs further streams.
func TestARestoredIteratorRunsFurtherStreams(t *testing.T) {
	dir := t.TempDir()
	next := begun(t, dir, divided)
	w := saving(t, dir)
	planned(t, w, "slow_shuffle")
	w.streams.Start(next)
	r := dialTCP(t, w)
	request := opening(next)
	request.StartIndex = reached
	r.open(1, request)
	if elements, _, _ := r.stream(reached); len(elements) != 1000-reached || recoveryOf(w).GetRestored() != 1 {
		t.Fatalf("%d elements, %v", len(elements), recoveryOf(w))
	}
	waitFor(t, "the iterator is free", func() bool { return w.streams.Load().Running == 0 })
	takeBack(t, w, next)
	other := proto.Clone(next).(*pecanv1.StartStream)
	other.Id.Stream, other.AckedBelow, other.Lease = 1, 0, next.Lease+1
	w.streams.Start(other)
	first(t, w, other, 0, 10)
	takeBack(t, w, other)
	if made := w.streams.Load().PooledIterators; made != 1 {
		t.Errorf("the restored stream and another one made %d pooled iterators", made)
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
	saved := t.TempDir()
	next := begun(t, saved)
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
			if err := os.CopyFS(dir, os.DirFS(saved)); err != nil {
				t.Fatal(err)
			}
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
	if load := w.streams.Loads()[0]; !w.heartbeat().Leaving || !load.Drained || load.Unread || load.Acked != count || load.Produced != count {
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
