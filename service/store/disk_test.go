package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/pecan-ml/pecan/service/store"
)

// smallDisk mounts a file system in memory with the given size.
func smallDisk(t *testing.T, bytes int, options ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may mount a small disk")
	}
	dir := t.TempDir()
	words := append([]string{fmt.Sprint("size=", bytes)}, options...)
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", strings.Join(words, ","), "none", dir).CombinedOutput(); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// fill writes a file that leaves the given number of bytes free on a disk.
func fill(t *testing.T, dir string, leave uint64) string {
	t.Helper()
	usage, err := vfs.Default.GetDiskUsage(dir)
	if err != nil || usage.AvailBytes < leave {
		t.Fatal(usage, err)
	}
	path := filepath.Join(dir, "filler")
	if err := os.WriteFile(path, make([]byte, usage.AvailBytes-leave), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// D5: other files fill the disk. Writes are refused before they start, reads work, and writes work again when there is
// space.
func TestD5AFullDiskRefusesAndRecovers(t *testing.T) {
	disk := smallDisk(t, 64<<20)
	s := open(t, store.Options{Dir: filepath.Join(disk, "work"), Reserve: 8 << 20})
	appendAll(t, s, "r1")
	for round := range 3 {
		filler := fill(t, disk, 4<<20)
		for what, write := range map[string]func() error{
			"a record":   func() error { return s.Append([][]byte{[]byte("lost")}) },
			"a graph":    func() error { return s.PutGraph("f", []byte("graph")) },
			"a snapshot": func() error { return s.Compact([]byte("all")) },
		} {
			if err := write(); !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "are kept in reserve") {
				t.Fatalf("%s on a full disk: %v", what, err)
			}
		}
		if _, records := contents(t, s); len(records) != 1+round {
			t.Fatalf("a full disk cannot be read: %q", records)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		appendAll(t, s, fmt.Sprint("r", round+2))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, store.Options{Dir: filepath.Join(disk, "work")})
	if _, records := contents(t, s); strings.Join(records, " ") != "r1 r2 r3 r4" {
		t.Fatalf("read %q", records)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// D5, D6: a disk fails permanently at any one operation. No acknowledged record is missing afterwards, and the store
// reports its failure.
func TestD6NoAcknowledgementIsWrongOnAFailingDisk(t *testing.T) {
	kinds := map[string][]errorfs.OpKind{
		"write": {errorfs.OpFileWrite, errorfs.OpFileWriteAt}, "fsync": {errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo},
		"close": {opClose}, "rename": {errorfs.OpRename}, "readdir": {errorfs.OpList}, "create": {errorfs.OpCreate},
	}
	for kind, ops := range kinds {
		for name, cause := range map[string]error{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC} {
			t.Run(kind+" "+name, func(t *testing.T) {
				hits := 0
				for n := int64(1); ; n += 1 + n/8 {
					if !failAt(t, ops, cause, n) {
						break
					}
					hits++
				}
				if hits == 0 {
					t.Fatal("the disk never failed")
				}
				t.Logf("failed at %d places", hits)
			})
		}
	}
}

// opClose is the closing of a file, for which errorfs cannot inject errors.
const opClose = errorfs.OpKind(-1)

// closing injects errors into the closing of created files.
type closing struct {
	vfs.FS
	inject errorfs.Injector
}

func (c closing) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := c.FS.Create(name, category)
	return closingFile{file, name, c.inject}, err
}

type closingFile struct {
	vfs.File
	name   string
	inject errorfs.Injector
}

func (c closingFile) Close() error {
	return errors.Join(c.File.Close(), c.inject.MaybeError(errorfs.Op{Kind: opClose, Path: c.name}))
}

// failAt uses a store on a disk that fails from the n-th operation of the kinds on. It reports whether there were that
// many operations.
func failAt(t *testing.T, kinds []errorfs.OpKind, cause error, n int64) bool {
	t.Helper()
	base := vfs.NewCrashableMem()
	var count atomic.Int64
	var healed atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		for _, kind := range kinds {
			if op.Kind == kind && !healed.Load() && count.Add(1) >= n {
				return &os.PathError{Op: "test", Path: op.Path, Err: cause}
			}
		}
		return nil
	})
	fsys := closing{errorfs.Wrap(base, inject), inject}
	defer healed.Store(true)
	var acknowledged []string
	s, err := openSoon(t, store.Options{Dir: "work", FS: fsys})
	for i := 0; err == nil && i < 12; i++ {
		record := fmt.Sprint("r", i+1)
		if err = s.Append([][]byte{[]byte(record)}); err == nil {
			acknowledged = append(acknowledged, record)
		}
		if err == nil && i == 5 {
			err = s.Compact([]byte("6"))
		}
		if err == nil && i == 8 {
			err = s.PutGraph("f", []byte("graph"))
		}
	}
	if err != nil && s != nil {
		// A failed store must not acknowledge later writes.
		select {
		case <-s.Failed():
		default:
			t.Fatalf("operation %d: %v, but the store does not report its failure", n, err)
		}
		if again := s.Append([][]byte{[]byte("late")}); again == nil {
			t.Fatalf("operation %d: %v, but a later record is acknowledged", n, err)
		}
	}
	crash := base.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(uint64(n), 6))})
	if err == nil {
		_ = s.Close()
	}
	if count.Load() < n {
		return false
	}
	again := open(t, store.Options{Dir: "work", FS: crash})
	snapshot, records := contents(t, again)
	checkPrefix(t, snapshot, records, acknowledged, 0)
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}
