package cachefill

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// stuckDisk is a directory of the host that makes a file durable when the test says so.
type stuckDisk struct {
	slowDisk
	release chan struct{}
	created int
}

func (d *stuckDisk) Create(name string) (cache.File, error) {
	d.created++
	file, err := d.slowDisk.Create(name)
	return &stuckFile{file, d}, err
}

type stuckFile struct {
	cache.File
	disk *stuckDisk
}

func (f *stuckFile) Sync() error { <-f.disk.release; return nil }

// While the segment of a part becomes durable, the next part is computed. The stream ends when all of its segments are durable.
func TestAPartIsComputedWhileASegmentBecomesDurable(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	parts := whole.Parts
	disk := &stuckDisk{slowDisk: slowDisk{path: t.TempDir()}, release: make(chan struct{}, len(parts))}
	d.dir, d.commitWait = cache.New(disk, 0), time.Minute
	from := &computed{runtime: runtime, graphs: graphs}
	s := source(t, d, plan, whole, nil)
	begin(t, s, from)
	for len(from.opened) < 2 {
		tensors, err := s.Pull()
		if err != nil {
			t.Fatal(err)
		}
		tf.ReleaseAll(tensors)
	}
	<-s.committing.Load().written
	if !s.committing.Load().late(0) {
		t.Fatal("the first segment is durable before it was synced")
	}
	for range len(parts) - 1 {
		disk.release <- struct{}{}
	}
	numbers(t, s)
	go func() { disk.release <- struct{}{} }()
	s.AwaitAck()
	if written := reported(d); !slices.Equal(written, parts) {
		t.Errorf("parts %v were written and reported, want %v", written, parts)
	}
}

// reported returns the parts whose segments were reported.
func reported(d *Directory) (written []uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, own := range d.own {
		if own.segment != nil {
			written = append(written, own.segment.GetPart())
		}
	}
	slices.Sort(written)
	return written
}

// A limit of the writing speed delays the end of a segment. That is no sign of a slow directory: all segments are written.
func TestAStreamWaitsForTheLimit(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	disk := &stuckDisk{slowDisk: slowDisk{path: t.TempDir()}, release: make(chan struct{})}
	close(disk.release)
	d.dir = cache.New(disk, 0)
	written := func() []*pecanv1.CacheSegment {
		s := source(t, d, plan, whole, nil)
		begin(t, s, &computed{runtime: runtime, graphs: graphs})
		numbers(t, s)
		return writtenBy(s)
	}
	free := written()
	d.commitWait = 100 * time.Millisecond
	d.LimitWriting(4 * free[0].Bytes)
	if limited := written(); len(limited) != len(whole.Parts) || len(free) != len(limited) {
		t.Errorf("%d of %d segments were written; %d without a limit", len(limited), len(whole.Parts), len(free))
	}
}

// D14: a segment is not durable for as long as the stream runs. The stream does not wait for it, begins no further segment, and ends. When
// the segment is durable, it is reported.
func TestAStreamDoesNotWaitForASlowCommit(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	disk := &stuckDisk{slowDisk: slowDisk{path: t.TempDir()}, release: make(chan struct{})}
	d.dir, d.commitWait = cache.New(disk, 0), 50*time.Millisecond
	s := source(t, d, plan, whole, nil)
	begin(t, s, &computed{runtime: runtime, graphs: graphs})
	if got := numbers(t, s); len(got) == 0 {
		t.Fatal("no elements")
	}
	s.AwaitAck()
	s.Close()
	if written, dropped := reported(d), d.Metrics().WritesDropped; len(written) != 0 || dropped != uint64(len(whole.Parts)-1) {
		t.Errorf("parts %v are reported, %d writes dropped", written, dropped)
	}
	// The second segment was begun before the first one was late.
	if disk.created > 2 {
		t.Errorf("%d segments were begun", disk.created)
	}
	close(disk.release)
	d.Running.Wait()
	if written := reported(d); !slices.Equal(written, whole.Parts[:1]) {
		t.Errorf("parts %v are reported", written)
	}
}

// D14: each segment becomes durable a little later than the next part is computed. The stream waits for no longer than commitWait in all of
// its parts.
func TestAStreamWaitsOnlyOnceForSlowCommits(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	disk := &stuckDisk{slowDisk: slowDisk{path: t.TempDir()}, release: make(chan struct{})}
	d.dir, d.commitWait = cache.New(disk, 0), 400*time.Millisecond
	ended := make(chan struct{})
	go func() {
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ended:
				close(disk.release)
				return
			}
			select {
			case disk.release <- struct{}{}:
			case <-ended:
			}
		}
	}()
	s := source(t, d, plan, whole, nil)
	begin(t, s, &computed{runtime: runtime, graphs: graphs})
	numbers(t, s)
	close(ended)
	s.AwaitAck()
	s.Close()
	d.Running.Wait()
	if s.settling > d.commitWait+200*time.Millisecond || s.settling == 0 {
		t.Errorf("%d parts waited %v, at most %v are allowed", len(whole.Parts), s.settling, d.commitWait)
	}
	if written := reported(d); len(written) == 0 || len(written) == len(whole.Parts) {
		t.Errorf("%d of %d segments were written", len(written), len(whole.Parts))
	}
}

// A run that is stopped does not wait for a commit. The segment is reported when it is durable.
func TestAStoppedRunDoesNotWaitForACommit(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	disk := &stuckDisk{slowDisk: slowDisk{path: t.TempDir()}, release: make(chan struct{})}
	d.dir, d.commitWait = cache.New(disk, 0), time.Hour
	s := source(t, d, plan, whole, nil)
	ctx, stop := context.WithCancel(t.Context())
	s.Context = ctx
	begin(t, s, &computed{runtime: runtime, graphs: graphs})
	for s.committing.Load() == nil {
		tensors, err := s.Pull()
		if err != nil {
			t.Fatal(err)
		}
		tf.ReleaseAll(tensors)
	}
	<-s.committing.Load().written
	stop()
	s.AwaitAck()
	s.Close()
	close(disk.release)
	d.Running.Wait()
}
