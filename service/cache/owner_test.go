package cache

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/pecan-ml/pecan/service/internal/safedir"
)

// stranger is a user that this process is not.
const stranger = 12345

// give gives a file to another user.
func give(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
	if err := os.Chown(path, stranger, stranger); err != nil {
		t.Fatal(err)
	}
}

// D16: the name of a segment is a file of another user. Nothing but its owner tells that its values may be theirs.
func TestAValidSegmentOfAnotherUserIsLeftAlone(t *testing.T) {
	path, list := t.TempDir(), chunks(1, 3)
	d := open(t, path, 0)
	s := write(t, d, testName, testID, list, false)
	file := filepath.Join(path, testName)
	if _, err := readAll(t, d, s, list); !errors.Is(err, io.EOF) {
		t.Fatal("the segment is not valid:", err)
	}

	give(t, file)
	if r, err := d.Open(s, new(pool).alloc); !errors.Is(err, errInvalid) || !errors.Is(err, safedir.ErrForeign) {
		t.Errorf("it is read: %v, %v", r, err)
	}
	if err := d.Remove(testName); !errors.Is(err, safedir.ErrForeign) {
		t.Error("it is removed:", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if names, err := d.List(ClusterOf(testName)); err != nil || len(names) > 0 {
		t.Errorf("it is a file of the cluster: %v, %v", names, err)
	}
	if clusters, _, err := d.Clusters(); err != nil || clusters[ClusterOf(testName)] != (Usage{1, s.Bytes}) {
		t.Errorf("its size does not count: %v, %v", clusters, err)
	}
}

// D16: everybody may have changed the file.
func TestASegmentThatEverybodyMayWriteToIsNotRead(t *testing.T) {
	path, list := t.TempDir(), chunks(1, 3)
	d := open(t, path, 0)
	s := write(t, d, testName, testID, list, false)
	for mode, want := range map[os.FileMode]error{0o606: safedir.ErrForeign, 0o660: io.EOF} {
		if err := os.Chmod(filepath.Join(path, testName), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(t, d, s, list); !errors.Is(err, want) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

// A file system that gives new files to another user makes segments that no worker would read.
func TestNothingIsWrittenWhereFilesGetAnotherOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files as another user")
	}
	path := t.TempDir()
	d := open(t, path, 0)
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	// The other calls of a Dir are made by other threads.
	runtime.LockOSThread()
	if err := syscall.Setfsuid(stranger); err != nil {
		t.Fatal(err)
	}
	_, err := d.fs.fs.Create(testName)
	if err := syscall.Setfsuid(0); err != nil {
		t.Fatal(err)
	}
	runtime.UnlockOSThread()
	if !errors.Is(err, safedir.ErrForeign) {
		t.Error("a segment was begun:", err)
	}
	if left, err := d.fs.List(); err != nil || len(left) > 0 {
		t.Errorf("files stay: %v, %v", left, err)
	}
}
