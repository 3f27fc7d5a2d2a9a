package buffer

import (
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("pecan-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestASlotHasOneReaderAtATime(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	fd := memfd(t, 1<<20, unix.F_SEAL_SHRINK)
	slot, err := p.MapSlot(fd, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, []byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	var released atomic.Int32
	b, err := slot.Read(5, func() { released.Add(1) })
	if err != nil || string(b.Bytes()) != "hello" {
		t.Fatalf("read %q, %v", b.Bytes(), err)
	}
	if _, err := slot.Read(5, nil); err != errSlotBusy {
		t.Errorf("a second read of a slot in use: %v", err)
	}
	b.Retain().Release()
	if released.Load() != 0 {
		t.Error("released while a reference was held")
	}
	b.Release()
	if released.Load() != 1 {
		t.Error("the release was not reported")
	}
	if _, err := slot.Read(1<<20+1, nil); err == nil {
		t.Error("read more than the slot has")
	}
	last, err := slot.Read(1, func() { t.Error("the release of a dropped slot was reported") })
	if err != nil {
		t.Fatal(err)
	}
	slot.Drop()
	slot.Drop()
	if stats := p.Stats(); stats.Slots != 1 || last.Bytes()[0] != 'h' {
		t.Errorf("the mapping went while it was read: %v", stats)
	}
	last.Release()
	last.Release()
	if stats := p.Stats(); stats.Slots != 0 || stats.Misuses != 1 {
		t.Errorf("%v", stats)
	}
	if _, err := slot.Read(1, nil); err == nil {
		t.Error("read a dropped slot")
	}
}

func TestSlotsThatCouldKillTheReaderAreRefused(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	file, err := os.Create(t.TempDir() + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		fd   int
		size int64
	}{
		"shorter than announced":       {memfd(t, 4096, unix.F_SEAL_SHRINK), 4097},
		"not sealed against shrinking": {memfd(t, 4096, unix.F_SEAL_GROW), 4096},
		"a file":                       {int(file.Fd()), 4096},
		"no descriptor":                {-1, 4096},
		"empty":                        {memfd(t, 4096, unix.F_SEAL_SHRINK), 0},
		"negative":                     {memfd(t, 4096, unix.F_SEAL_SHRINK), -1},
	} {
		if slot, err := p.MapSlot(tc.fd, tc.size); err == nil {
			slot.Drop()
			t.Errorf("%s: mapped", name)
		}
	}
}

func BenchmarkGetRelease(b *testing.B) {
	for name, n := range map[string]int{"small": 2000, "large": 9600000} {
		b.Run(name, func(b *testing.B) {
			p := newPool(b, Config{})
			for b.Loop() {
				get(b, p, n).Release()
			}
		})
	}
}
