package cache

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A directory that was removed and made again is another one, as that of a mount that has returned.
func TestADirectoryThatReturnsIsUsedAgain(t *testing.T) {
	path, list := filepath.Join(t.TempDir(), "cache"), chunks(7, 12)
	d := open(t, path, 0)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(d, list); err == nil {
		t.Error("a segment was written without a directory")
	}
	if err := os.Mkdir(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(d, list); err == nil {
		t.Error("a segment was written into a directory that everybody may write to")
	}
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	segment, err := attempt(d, list)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := readAll(t, d, segment, list); n != len(list) {
		t.Errorf("%d of %d chunks: %v", n, len(list), err)
	}
	if names, err := d.List(ClusterOf(segment.Name)); err != nil || !slices.Equal(names, []string{segment.Name}) {
		t.Errorf("the directory has %v, %v", names, err)
	}
}

// gone is a directory whose files, and then the directory itself, cannot be read. If it is short, its files are empty.
type gone struct {
	*memory
	file, dir error
	short     bool
	lists     int
}

func (g *gone) Open(name string) (Readable, int64, error) {
	file, size, err := g.memory.Open(name)
	if g.short {
		size = 0
	}
	return goneFile{file, g}, size, err
}

func (g *gone) List() ([]Info, error) {
	g.lists++
	if g.dir != nil {
		return nil, g.dir
	}
	return g.memory.List()
}

type goneFile struct {
	Readable
	g *gone
}

func (f goneFile) ReadAt(data []byte, at int64) (int, error) {
	if f.g.file != nil {
		return 0, f.g.file
	}
	return f.Readable.ReadAt(data, at)
}

// stored returns a directory with one segment, and the description of one that is not there.
func stored(t *testing.T) (g *gone, d *Dir, segment, missing Segment) {
	g = &gone{memory: newMemory(func(string) error { return nil })}
	d = New(g, 0)
	segment, err := attempt(d, chunks(7, 12))
	if err != nil {
		t.Fatal(err)
	}
	missing = segment
	missing.Name = "c-0-abab-3-18-1-0123456789abcdef.seg"
	return g, d, segment, missing
}

// D14: a file that cannot be read is lost, unless nothing of its directory can be read. s3fs says that files are empty while the bucket
// refuses the credentials.
func TestASegmentIsValidWhileItsDirectoryIsGone(t *testing.T) {
	for what, c := range map[string]struct {
		missing, short bool
		file, dir      error
	}{
		"a file that cannot be read":      {file: io.ErrUnexpectedEOF},
		"a missing file":                  {missing: true},
		"an empty file":                   {short: true},
		"a directory that cannot be read": {file: os.ErrInvalid, dir: os.ErrInvalid},
		"a missing file in it":            {missing: true, dir: os.ErrInvalid},
		"an empty file in it":             {short: true, dir: os.ErrPermission},
	} {
		g, d, segment, missing := stored(t)
		r, err := d.Open(segment, Heap)
		if err != nil {
			t.Fatal(err)
		}
		g.file, g.dir, g.short = c.file, c.dir, c.short
		for err = error(nil); err == nil; {
			_, err = r.Next()
		}
		if noAnswer := c.dir != nil; c.file != nil && errors.Is(err, ErrNoAnswer) != noAnswer {
			t.Errorf("%s, while it is read: %v", what, err)
		}
		if c.missing {
			segment = missing
		}
		if _, err := d.Open(segment, Heap); !errors.Is(err, errInvalid) || errors.Is(err, ErrNoAnswer) != (c.dir != nil) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A list of a bucket is expensive, so one counts for all files that are missing in the next seconds.
func TestOneListCountsForManyMissingFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, d, segment, missing := stored(t)
		open := func(s Segment, lists int, noAnswer bool) {
			t.Helper()
			if _, err := d.Open(s, Heap); !errors.Is(err, errInvalid) || errors.Is(err, ErrNoAnswer) != noAnswer || g.lists != lists {
				t.Errorf("%d lists: %v", g.lists, err)
			}
		}
		for range 3 {
			open(missing, 1, false)
		}
		// A file that is there and cannot be read is rare, and may be the first sign that the directory is gone.
		g.file, g.dir = os.ErrInvalid, os.ErrInvalid
		open(segment, 2, true)
		time.Sleep(listedFor)
		open(missing, 3, true)
		open(missing, 4, true)
		g.dir = nil
		open(missing, 5, false)
		open(missing, 5, false)
	})
}

// A mounted bucket uploads a file when it is closed, and copies it when it is renamed.
func TestClosingAndRenamingMayTakeAsLongAsSyncing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(func(what string) error {
			if what == "close" || what == "rename" || what == "sync" {
				time.Sleep(2 * mostWait)
			}
			return nil
		})
		if _, err := attempt(New(m, 0), chunks(7, 12)); err != nil {
			t.Error(err)
		}
	})
}

// A list of a bucket is expensive, so a full directory is not listed for each write. What another process removes makes room.
func TestAFullDirectoryIsListedOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, list := &gone{memory: newMemory(func(string) error { return nil })}, chunks(7, 12)
		d := New(g, 0)
		segment, err := attempt(d, list)
		if err != nil {
			t.Fatal(err)
		}
		d = New(g, segment.Bytes)
		try := func(lists int, full bool) {
			t.Helper()
			for range 5 {
				if err := d.reserve(1); errors.Is(err, errBudget) != full || !full && err != nil || g.lists != lists {
					t.Errorf("%d lists: %v", g.lists, err)
				}
			}
		}
		try(1, true)
		if err := g.Remove(segment.Name); err != nil {
			t.Fatal(err)
		}
		time.Sleep(fullPause - time.Millisecond)
		try(1, true)
		time.Sleep(time.Millisecond)
		try(2, false)
	})
}

// D14: a file system is mounted at a path, goes, and returns. The directory that it hid is not written to: it may lie on the host's own
// disk.
func TestADirectoryThatAMountHidIsNotUsed(t *testing.T) {
	path, list := t.TempDir(), chunks(7, 12)
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	mount := func() {
		t.Helper()
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, "mode=700"); errors.Is(err, os.ErrPermission) {
			t.Skip("this user may not mount:", err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	unmount := func() error { return unix.Unmount(path, unix.MNT_DETACH) }
	mount()
	t.Cleanup(func() { _ = unmount() })
	d := open(t, path, 0)
	// The kernel makes a file system read-only that has errors. The open directory then refuses writes, also without a mount.
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(d, list); err == nil || !strings.Contains(err.Error(), errUnmounted.Error()) {
		t.Error("a segment was written, or the error has no reason:", err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 0 {
		t.Errorf("the directory below the mount has %v, %v", entries, err)
	}
	mount()
	segment, err := attempt(d, list)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := readAll(t, d, segment, list); n != len(list) {
		t.Errorf("%d of %d chunks: %v", n, len(list), err)
	}
}

// A mount that did not answer when the process started is used when it answers.
func TestADirectoryIsOpenedLater(t *testing.T) {
	path, list := filepath.Join(t.TempDir(), "cache"), chunks(7, 12)
	d := New(&disk{path: path}, 0)
	if _, err := attempt(d, list); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(d, list); err != nil {
		t.Error(err)
	}
}
