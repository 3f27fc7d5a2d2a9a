package cachefill

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// slowDisk is a directory of the host whose calls take as long as the test says.
type slowDisk struct {
	path  string
	delay atomic.Int64
}

func (d *slowDisk) wait() { time.Sleep(time.Duration(d.delay.Load())) }

func (d *slowDisk) Create(name string) (cache.File, error) {
	d.wait()
	file, err := os.Create(filepath.Join(d.path, name))
	return &slowFile{file, d}, err
}

func (d *slowDisk) Open(name string) (cache.Readable, int64, error) {
	d.wait()
	file, err := os.Open(filepath.Join(d.path, name))
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	return &slowFile{file, d}, info.Size(), err
}

func (d *slowDisk) Rename(from, to string) error {
	d.wait()
	return os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
}
func (d *slowDisk) Remove(name string) error    { d.wait(); return os.Remove(filepath.Join(d.path, name)) }
func (d *slowDisk) List() ([]cache.Info, error) { return nil, errUnused }
func (d *slowDisk) SyncDir() error              { d.wait(); return nil }

type slowFile struct {
	*os.File
	disk *slowDisk
}

func (f *slowFile) Write(data []byte) (int, error) { f.disk.wait(); return f.File.Write(data) }
func (f *slowFile) ReadAt(data []byte, at int64) (int, error) {
	f.disk.wait()
	return f.File.ReadAt(data, at)
}

// D14: each call of the directory takes longer than a caller waits, while a segment is written, and while one is read. All
// elements come, computed. What was stored stays, and is read when the directory is fast again.
func TestASlowDirectoryChangesNoElement(t *testing.T) {
	d, runtime := directory(t)
	const most = 20 * time.Millisecond
	disk := &slowDisk{path: t.TempDir()}
	d.dir = cache.Patient(disk, 0, most)
	plan, whole, graphs := cached(t)
	parts := whole.Parts
	// stream runs a stream, and returns its elements, the segments that it wrote, and how many parts it computed.
	stream := func(segments []*pecanv1.CacheSegment) (all []uint64, written []*pecanv1.CacheSegment, computedParts int) {
		t.Helper()
		s, from := source(t, d, plan, whole, segments), &computed{runtime: runtime, graphs: graphs}
		begin(t, s, from)
		all = numbers(t, s)
		written = writtenBy(s)
		s.Close()
		return all, written, len(from.opened)
	}
	want, segments, _ := stream(nil)
	if len(segments) != len(parts) || len(want) == 0 {
		t.Fatalf("%d segments of %d parts were written", len(segments), len(parts))
	}
	disk.delay.Store(int64(5 * most))
	got, none, _ := stream(nil)
	if !slices.Equal(got, want) || len(none) != 0 || d.Metrics().WritesDropped == 0 {
		t.Errorf("written slowly: %d of %d elements, %d segments, %d writes dropped", len(got), len(want), len(none), d.Metrics().WritesDropped)
	}
	if _, _, writable := d.Usage(); writable {
		t.Error("a slow directory counts as writable, so a decision may choose it")
	}
	if got, _, opened := stream(segments); !slices.Equal(got, want) || opened != len(parts) {
		t.Errorf("read slowly: %d of %d elements, computed %d of %d parts", len(got), len(want), opened, len(parts))
	}
	if n := d.Metrics().SegmentsInvalid; n != 0 {
		t.Errorf("%d segments of a slow directory count as invalid", n)
	}
	// The calls that were not waited for end.
	time.Sleep(40 * most)
	disk.delay.Store(0)
	if got, _, opened := stream(segments); !slices.Equal(got, want) || opened != 0 {
		t.Errorf("read again: %d of %d elements, computed %d parts", len(got), len(want), opened)
	}
	// A stream that tries would wait again. A probe finds that the directory answers.
	if got, none, _ := stream(nil); !slices.Equal(got, want) || len(none) != 0 {
		t.Errorf("before a probe: %d of %d elements, %d segments", len(got), len(want), len(none))
	}
	// On a busy host, a call of the probe may take too long, too.
	for err := d.probe(t.Context()); err != nil; err = d.probe(t.Context()) {
		time.Sleep(most)
	}
	if got, again, _ := stream(nil); !slices.Equal(got, want) || len(again) != len(parts) {
		t.Errorf("after a probe: %d of %d elements, %d segments", len(got), len(want), len(again))
	}
}
