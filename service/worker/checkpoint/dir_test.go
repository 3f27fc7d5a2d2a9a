package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pecan-ml/pecan/service/internal/safedir"
)

// A directory that others could have prepared is refused at the start, as for caches.
func TestADirectoryOfCheckpointsThatOthersCanFillIsRefused(t *testing.T) {
	open, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Chmod(open, 0o777), os.Symlink(t.TempDir(), link)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, link} {
		if _, err := Open(dir); !errors.Is(err, safedir.ErrUnsafe) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// D12: a FIFO that replaces a checkpoint after the listing is refused, and not waited for.
func TestAFIFOUnderACheckpointsNameIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "1-1.checkpoint"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Read("1-1.checkpoint", nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Fatal(err)
	}
}
