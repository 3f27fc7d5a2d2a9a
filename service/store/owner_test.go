package store_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pecan-ml/pecan/service/store"
)

// D7: the error about an unusable directory names it, and nothing is created.
func TestD7DirectoriesThatCannotBeUsedAreRefused(t *testing.T) {
	base := t.TempDir()
	file, link, toFile := filepath.Join(base, "file"), filepath.Join(base, "link"), filepath.Join(base, "to-file")
	for _, err := range []error{
		os.WriteFile(file, []byte("x"), 0o600), os.Symlink(filepath.Join(base, "nowhere"), link), os.Symlink(file, toFile),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		dir  func(t *testing.T) string
		want error
		text string
	}{
		"its parent is missing":  {func(*testing.T) string { return filepath.Join(base, "no", "work") }, store.ErrNoDirectory, "create it first"},
		"it is a file":           {func(*testing.T) string { return file }, store.ErrNoDirectory, "not a directory"},
		"below a file":           {func(*testing.T) string { return filepath.Join(file, "work") }, nil, "not a directory"},
		"it is a broken link":    {func(*testing.T) string { return link }, store.ErrNoDirectory, "a link to a file that does not exist"},
		"it is a link to a file": {func(*testing.T) string { return toFile }, store.ErrNoDirectory, "not a directory"},
		"the disk is full": {func(t *testing.T) string {
			disk := smallDisk(t, 1<<20)
			return filepath.Join(disk, "work")
		}, store.ErrFull, "kept in reserve"},
		"the disk is read-only": {func(t *testing.T) string { return filepath.Join(smallDisk(t, 1<<20, "ro"), "work") }, store.ErrReadOnly, "cannot be written"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.dir(t)
			reserve := int64(0)
			if errors.Is(c.want, store.ErrFull) {
				reserve = 8 << 20
			}
			s, err := store.Open(store.Options{Dir: dir, Reserve: reserve})
			if err == nil {
				s.Close()
			}
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				t.Errorf("%s was made", dir)
			}
		})
	}
}

// D7: a link to a directory works like the directory.
func TestD7ALinkToADirectoryIsFollowed(t *testing.T) {
	base := t.TempDir()
	link := filepath.Join(base, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(base, "disk"), 0o700), os.Symlink("disk", link)); err != nil {
		t.Fatal(err)
	}
	s := open(t, store.Options{Dir: link})
	appendAll(t, s, "r1")
	if _, err := store.Open(store.Options{Dir: link}); !errors.Is(err, store.ErrInUse) {
		t.Fatalf("second owner: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// lockless is a file system whose locks have no effect, like some network file systems.
type lockless struct{ vfs.FS }

type nothing struct{}

func (nothing) Close() error { return nil }

func (lockless) Lock(string) (io.Closer, error) { return nothing{}, nil }

// D8: without working locks, the older of two owners stops at its next write. The records that it acknowledged remain.
func TestD8AnOwnerThatLostItsLockWritesNoMore(t *testing.T) {
	for name, write := range map[string]func(s *store.Store) error{
		"records":    func(s *store.Store) error { return s.Append([][]byte{[]byte("lost")}) },
		"a snapshot": func(s *store.Store) error { return s.Compact([]byte("lost")) },
		"a graph":    func(s *store.Store) error { return s.PutGraph("f", []byte("lost")) },
	} {
		t.Run(name, func(t *testing.T) {
			fsys := lockless{vfs.NewMem()}
			older := open(t, store.Options{Dir: workDir, FS: fsys})
			appendAll(t, older, "r1", "r2")
			newer := open(t, store.Options{Dir: workDir, FS: fsys})
			if err := write(older); !errors.Is(err, store.ErrInUse) || !strings.Contains(err.Error(), "another dispatcher has opened it") {
				t.Fatalf("the older owner writes: %v", err)
			}
			select {
			case <-older.Failed():
			case <-time.After(10 * time.Second):
				t.Fatal("the older owner does not report that it stopped")
			}
			appendAll(t, newer, "r3")
			if _, err := newer.Graph("f"); !errors.Is(err, store.ErrNoGraph) {
				t.Fatalf("the older owner's graph: %v", err)
			}
			if err := newer.Close(); err != nil {
				t.Fatal(err)
			}
			again := open(t, store.Options{Dir: workDir, FS: fsys})
			if snapshot, records := contents(t, again); snapshot != "" || strings.Join(records, " ") != "r1 r2 r3" {
				t.Fatalf("read %q %q", snapshot, records)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
