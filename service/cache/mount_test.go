package cache

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
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

// gone is a directory whose files, and then the directory itself, cannot be read.
type gone struct {
	*memory
	file, dir error
}

func (g *gone) Open(name string) (Readable, int64, error) {
	file, size, err := g.memory.Open(name)
	return goneFile{file, g}, size, err
}

func (g *gone) List() ([]Info, error) {
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

// A file that cannot be read is lost, unless nothing of its directory can be read.
func TestASegmentIsValidWhileItsDirectoryIsGone(t *testing.T) {
	g, list := &gone{memory: newMemory(func(string) error { return nil })}, chunks(7, 12)
	d := New(g, 0)
	segment, err := attempt(d, list)
	if err != nil {
		t.Fatal(err)
	}
	missing := segment
	missing.Name = "c-0-abab-3-18-1-0123456789abcdef.seg"
	for what, c := range map[string]struct {
		s         Segment
		file, dir error
		noAnswer  bool
	}{
		"a file that cannot be read":      {segment, io.ErrUnexpectedEOF, nil, false},
		"a missing file":                  {missing, nil, nil, false},
		"a directory that cannot be read": {segment, os.ErrInvalid, os.ErrInvalid, true},
		"a missing file in it":            {missing, nil, os.ErrInvalid, true},
	} {
		g.file, g.dir = c.file, c.dir
		if _, err := d.Open(c.s, Heap); !errors.Is(err, errInvalid) || errors.Is(err, ErrNoAnswer) != c.noAnswer {
			t.Errorf("%s: %v", what, err)
		}
		g.file, g.dir = nil, nil
		r, err := d.Open(segment, Heap)
		if err != nil {
			t.Fatal(err)
		}
		g.file, g.dir = c.file, c.dir
		for err = error(nil); err == nil; {
			_, err = r.Next()
		}
		if c.file != nil && errors.Is(err, ErrNoAnswer) != c.noAnswer {
			t.Errorf("%s, while it is read: %v", what, err)
		}
	}
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
