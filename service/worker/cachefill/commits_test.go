package cachefill

import (
	"slices"
	"testing"
	"time"

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

// While the segments of two parts become durable, the next part is computed. The stream ends when all of its segments are durable.
func TestPartsAreComputedWhileSegmentsBecomeDurable(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	parts := whole.Parts
	disk := &stuckDisk{slowDisk: slowDisk{path: t.TempDir()}, release: make(chan struct{}, len(parts))}
	d.dir = cache.New(disk, 0)
	if len(parts) <= mostCommits {
		t.Fatalf("the stream has %d parts", len(parts))
	}
	from := &computed{runtime: runtime, graphs: graphs}
	s := source(t, d, plan, whole, nil)
	begin(t, s, from)
	for len(from.opened) <= mostCommits {
		tensors, err := s.Pull()
		if err != nil {
			t.Fatal(err)
		}
		tf.ReleaseAll(tensors)
	}
	for _, c := range s.commits {
		select {
		case <-c.done:
			t.Error("a segment is durable before it was synced")
		default:
		}
	}
	for range len(parts) - 1 {
		disk.release <- struct{}{}
	}
	numbers(t, s)
	d.AckWait = 0
	ended := make(chan struct{})
	go func() {
		s.AwaitAck()
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("the stream ended before its last segment was durable")
	case <-time.After(50 * time.Millisecond):
	}
	disk.release <- struct{}{}
	<-ended
	var written []uint32
	for _, segment := range writtenBy(s) {
		written = append(written, segment.Part)
	}
	if !slices.Equal(written, parts) {
		t.Errorf("parts %v were written, want %v", written, parts)
	}
}
