package cachefill

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/worker/dataset"
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
	d.dir = cache.New(cache.Patient(disk, most), 0)
	o, graphs := cached(t)
	computed := 0
	upstream := func() (*tf.Iterator, func(), error) {
		computed++
		types, err := dataset.OutputTypes(graphs.UpstreamOfCache)
		if err != nil {
			return nil, nil, err
		}
		it, err := runtime.NewIterator(graphs.UpstreamOfCache, types)
		if err != nil {
			return nil, nil, err
		}
		return it, it.Close, nil
	}
	stream := func(segment *pecanv1.CacheSegment) (all []uint64, written *pecanv1.CacheSegment) {
		t.Helper()
		s := &Source{
			Directory: d, Action: &pecanv1.CacheAction{Key: o.GetCache().GetKey(), Segment: segment}, Step: o.GetCache(),
			Streams: uint32(o.GetNumStreams()), Lease: 1, Context: t.Context(), Log: d.Log,
		}
		if err := s.Begin(graphs, upstream); err != nil {
			t.Fatal(err)
		}
		all = numbers(t, s)
		written = s.written.Load()
		s.written.Store(nil)
		s.Close()
		return all, written
	}
	want, segment := stream(nil)
	if segment == nil || len(want) == 0 {
		t.Fatal("nothing was written")
	}
	disk.delay.Store(int64(5 * most))
	got, none := stream(nil)
	if !slices.Equal(got, want) || none != nil || d.Metrics().WritesDropped != 1 {
		t.Errorf("written slowly: %d of %d elements, segment %v, %d writes dropped", len(got), len(want), none, d.Metrics().WritesDropped)
	}
	if _, _, writable := d.Usage(); writable {
		t.Error("a slow directory counts as writable, so a decision may choose it")
	}
	computed = 0
	if got, _ := stream(segment); !slices.Equal(got, want) || computed != 1 {
		t.Errorf("read slowly: %d of %d elements, computed %d times", len(got), len(want), computed)
	}
	if n := d.Metrics().SegmentsInvalid; n != 0 {
		t.Errorf("%d segments of a slow directory count as invalid", n)
	}
	// The calls that were not waited for end.
	time.Sleep(40 * most)
	disk.delay.Store(0)
	computed = 0
	if got, _ := stream(segment); !slices.Equal(got, want) || computed != 0 {
		t.Errorf("read again: %d of %d elements, computed %d times", len(got), len(want), computed)
	}
}
