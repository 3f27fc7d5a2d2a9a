package cachefill

import (
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/cache"
)

// stuckDisk is a directory of the host that makes a file durable when the test says so.
type stuckDisk struct {
	slowDisk
	release chan struct{}
}

func (d *stuckDisk) Create(name string) (cache.File, error) {
	file, err := d.slowDisk.Create(name)
	return &stuckFile{file, d}, err
}

type stuckFile struct {
	cache.File
	disk *stuckDisk
}

func (f *stuckFile) Sync() error { <-f.disk.release; return f.File.Sync() }

// While the segment of a part becomes durable, the next part is computed. The stream ends when all of its segments are durable.
func TestAPartIsComputedWhileASegmentBecomesDurable(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	parts := whole.Parts
	disk := &stuckDisk{slowDisk: slowDisk{path: t.TempDir()}, release: make(chan struct{}, len(parts))}
	d.dir, d.AckWait = cache.New(disk, 0), 0
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
	if s.committing.TryLock() {
		t.Fatal("the first segment is durable before it was synced")
	}
	for range len(parts) - 1 {
		disk.release <- struct{}{}
	}
	numbers(t, s)
	go func() { disk.release <- struct{}{} }()
	s.AwaitAck()
	var written []uint32
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, own := range d.own {
		written = append(written, own.segment.GetPart())
	}
	slices.Sort(written)
	if !slices.Equal(written, parts) {
		t.Errorf("parts %v were written and reported, want %v", written, parts)
	}
}
