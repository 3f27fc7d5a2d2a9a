package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func makeFIFO(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// oneFile is a directory whose every name is one file.
type oneFile struct{ data []byte }

func (f *oneFile) Open(string) (Readable, int64, error) {
	return vfs.NewMemFile(f.data), int64(len(f.data)), nil
}
func (f *oneFile) Create(string) (File, error) { return nil, errors.ErrUnsupported }
func (f *oneFile) Rename(string, string) error { return errors.ErrUnsupported }
func (f *oneFile) Remove(string) error         { return errors.ErrUnsupported }
func (f *oneFile) List() ([]Info, error)       { return nil, errors.ErrUnsupported }
func (f *oneFile) SyncDir() error              { return errors.ErrUnsupported }

// memory is a directory in memory that loses at a crash what was not synced. before is asked before every call that changes something.
type memory struct {
	fs     *vfs.MemFS
	before func(what string) error
}

const memoryDir = "cache"

func newMemory(before func(string) error) *memory {
	m := &memory{fs: vfs.NewCrashableMem(), before: before}
	if err := m.fs.MkdirAll(memoryDir, 0o700); err != nil {
		panic(err)
	}
	if root, err := m.fs.OpenDir("/"); err != nil || root.Sync() != nil {
		panic(err)
	}
	return m
}

func (m *memory) path(name string) string { return m.fs.PathJoin(memoryDir, name) }

func (m *memory) Create(name string) (File, error) {
	if err := m.before("create"); err != nil {
		return nil, err
	}
	file, err := m.fs.Create(m.path(name), vfs.WriteCategoryUnspecified)
	return &memoryFile{file, m.before}, err
}

func (m *memory) Open(name string) (Readable, int64, error) {
	file, err := m.fs.Open(m.path(name))
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	return file, info.Size(), err
}

func (m *memory) Rename(from, to string) error {
	if err := m.before("rename"); err != nil {
		return err
	}
	return m.fs.Rename(m.path(from), m.path(to))
}

func (m *memory) Remove(name string) error {
	if err := m.before("remove"); err != nil {
		return err
	}
	_ = m.fs.Remove(m.path(name))
	return nil
}

func (m *memory) List() ([]Info, error) {
	names, err := m.fs.List(memoryDir)
	var out []Info
	for _, name := range names {
		if info, err := m.fs.Stat(m.path(name)); err == nil {
			out = append(out, Info{Name: name, Size: info.Size()})
		}
	}
	return out, err
}

func (m *memory) SyncDir() error {
	if err := m.before("sync the directory"); err != nil {
		return err
	}
	dir, err := m.fs.OpenDir(memoryDir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

type memoryFile struct {
	vfs.File
	before func(string) error
}

func (f *memoryFile) Write(p []byte) (int, error) {
	if err := f.before("write"); err != nil {
		// A disk that is full takes a part.
		n, _ := f.File.Write(slices.Clone(p[:len(p)/2]))
		return n, err
	}
	// Under the race detector, pebble's memory file damages what it was given.
	return f.File.Write(slices.Clone(p))
}

func (f *memoryFile) Sync() error {
	if err := f.before("sync"); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *memoryFile) Close() error {
	if err := f.before("close"); err != nil {
		return errors.Join(err, f.File.Close())
	}
	return f.File.Close()
}

// attempt writes a segment and reports whether that was acknowledged.
func attempt(d *Dir, list []Chunk) (Segment, error) {
	w, err := d.Create(context.Background(), testName, testID, testDTypes, Uncompressed)
	if err != nil {
		return Segment{}, err
	}
	for i := range list {
		if err := w.Append(&list[i]); err != nil {
			return Segment{}, errors.Join(err, w.Abort())
		}
	}
	return w.Commit()
}

// TestACrashAtAnyCallLeavesAWholeSegmentOrNone crashes before every call that changes the directory. An acknowledged segment is complete
// afterwards, whatever remains of unsynced data. Any other segment is complete or absent.
func TestACrashAtAnyCallLeavesAWholeSegmentOrNone(t *testing.T) {
	list := chunks(7, 12)
	want, err := attempt(New(newMemory(func(string) error { return nil }), 0), list)
	if err != nil {
		t.Fatal(err)
	}
	crash := errors.New("crashed")
	acknowledged, calls := 0, 0
	for at := 0; ; at++ {
		var left *vfs.MemFS
		var m *memory
		count, where := 0, ""
		m = newMemory(func(what string) error {
			if left != nil {
				return crash
			}
			if count == at {
				where = what
				left = m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: at % 3 * 50, RNG: rand.New(rand.NewPCG(uint64(at), 1))})
				return crash
			}
			count++
			return nil
		})
		_, err := attempt(New(m, 0), list)
		if left == nil {
			// The call ended first. The last crash is right after the acknowledgement, and unsynced data is lost.
			if err != nil {
				t.Fatal(err)
			}
			acknowledged++
			left = m.fs.CrashClone(vfs.CrashCloneCfg{})
		} else if err == nil {
			t.Errorf("a crash before %s (call %d) was acknowledged", where, at)
		}
		calls = at
		after := &memory{fs: left, before: func(string) error { return nil }}
		n, readErr := readAll(t, New(after, 0), want, list)
		whole := n == len(list) && errors.Is(readErr, io.EOF)
		if !whole && !errors.Is(readErr, errInvalid) {
			t.Errorf("after a crash before %s (call %d): %d chunks, %v", where, at, n, readErr)
		}
		if err == nil {
			if !whole {
				t.Errorf("the acknowledged segment cannot be read: %v", readErr)
			}
			break
		}
	}
	if acknowledged != 1 || calls < 8 {
		t.Errorf("%d calls were crashed, %d attempts acknowledged", calls, acknowledged)
	}
}

// TestAnErrorAtAnyCallIsReturned lets each call fail once. A failed write acknowledges nothing and leaves no file.
func TestAnErrorAtAnyCallIsReturned(t *testing.T) {
	list := chunks(7, 12)
	full := errors.New("no space left on device")
	for at := 0; ; at++ {
		count, where := 0, ""
		m := newMemory(func(what string) error {
			count++
			if count-1 == at {
				where = what
				return full
			}
			return nil
		})
		_, err := attempt(New(m, 0), list)
		if where == "" {
			if err != nil || at < 8 {
				t.Fatalf("after %d calls: %v", at, err)
			}
			return
		}
		if !errors.Is(err, full) {
			t.Errorf("%s (call %d) failed: %v", where, at, err)
		}
		names, listErr := m.List()
		if len(names) != 0 || listErr != nil {
			t.Errorf("%s (call %d) failed and left %v behind (%v)", where, at, names, fmt.Sprint(listErr))
		}
	}
}
