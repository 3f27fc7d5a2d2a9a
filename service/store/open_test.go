package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/pecan-ml/pecan/service/store"
)

// The disk has no space for a table. Without the store's handling pebble would retry forever during the opening.
func TestAFullDiskIsAnErrorWhenTheStoreIsOpened(t *testing.T) {
	base := vfs.NewCrashableMem()
	s := open(t, store.Options{Dir: "work", FS: base})
	appendAll(t, s, "r1", "r2")
	left := base.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	full := errorfs.Wrap(left, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst") {
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
		}
		return nil
	}))
	if _, err := openSoon(t, store.Options{Dir: "work", FS: full}); !errors.Is(err, store.ErrFailed) || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("opened on a full disk: %v", err)
	}
}

// openSoon opens a store that may be damaged. The opening must return in time.
func openSoon(t *testing.T, options store.Options) (s *store.Store, err error) {
	t.Helper()
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		s, err = store.Open(options)
	}()
	select {
	case <-opened:
		return s, err
	case <-time.After(10 * time.Second):
		t.Fatal("the opening does not return")
		return nil, nil
	}
}

func TestOpenReturnsAnErrorThatNamesTheDirectory(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(base, "foreign")
	newer := filepath.Join(base, "newer")
	setKey(t, foreign, "something", "else")
	setKey(t, newer, "format", fmt.Sprint("pecan-store/", store.Format+1))
	cases := map[string]struct {
		dir  string
		want error
	}{
		"a directory whose parent is missing": {filepath.Join(base, "missing", "work"), store.ErrNoDirectory},
		"a file":                              {file, store.ErrNoDirectory},
		"a newer version":                     {newer, store.ErrNewer},
		"another program's database":          {foreign, store.ErrDamaged},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := store.Open(store.Options{Dir: c.dir})
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.dir) {
				t.Fatalf("got %v, want %v naming the directory", err, c.want)
			}
		})
	}
}

func TestReadOnlyDirectoriesAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		t.Skip("root writes everywhere")
	}
	if _, err := store.Open(store.Options{Dir: dir}); !errors.Is(err, store.ErrReadOnly) {
		t.Fatalf("got %v", err)
	}
}

func setKey(t *testing.T, dir, key, value string) {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Set([]byte(key), []byte(value), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAnOlderStoreGetsTheFormatOfThisVersion(t *testing.T) {
	dir := t.TempDir()
	setKey(t, dir, "format", "pecan-store/1")
	if err := open(t, store.Options{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(dir, &pebble.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	value, closer, err := db.Get([]byte("format"))
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	if want := fmt.Sprint("pecan-store/", store.Format); string(value) != want {
		t.Fatalf("the format is %s instead of %s", value, want)
	}
}
