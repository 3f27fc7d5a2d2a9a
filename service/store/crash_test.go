package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/pecan-ml/pecan/service/store"
)

// crashing is a disk that clones itself before its n-th change, in the state that a power failure would leave.
type crashing struct {
	base  *vfs.MemFS
	count atomic.Int64
	at    atomic.Int64
	rng   *rand.Rand

	// mu guards clone: pebble removes files in the background.
	mu    sync.Mutex
	clone *vfs.MemFS
}

func (c *crashing) crashed() *vfs.MemFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clone
}

// MaybeError implements errorfs.Injector. It injects no error; it only counts the changes.
func (c *crashing) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpCreate, errorfs.OpRename,
		errorfs.OpRemove, errorfs.OpLink:
		if c.count.Add(1) == c.at.Load() {
			left := c.base.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.rng.IntN(3) * 50, RNG: c.rng})
			c.mu.Lock()
			c.clone = left
			c.mu.Unlock()
		}
	}
	return nil
}

// String implements errorfs.Injector.
func (c *crashing) String() string { return "crashing" }

// crashDuring opens a store on a disk and does work. It returns the disk in the state that a power failure before the
// n-th change leaves, or nil if there were fewer changes.
func crashDuring(t *testing.T, base *vfs.MemFS, n int64, seed uint64, work func(s *store.Store) error) *vfs.MemFS {
	t.Helper()
	c := &crashing{base: base, rng: rand.New(rand.NewPCG(seed, uint64(n)))}
	s := open(t, store.Options{Dir: workDir, FS: errorfs.Wrap(base, c)})
	c.at.Store(c.count.Load() + n)
	err := work(s)
	left := c.crashed()
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return left
}

// crashOpening is crashDuring for a crash during the opening of the store.
func crashOpening(t *testing.T, base *vfs.MemFS, n int64, seed uint64) *vfs.MemFS {
	t.Helper()
	c := &crashing{base: base, rng: rand.New(rand.NewPCG(seed, uint64(n)))}
	c.at.Store(n)
	s := open(t, store.Options{Dir: workDir, FS: errorfs.Wrap(base, c)})
	left := c.crashed()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return left
}

// killed returns a memory disk with a store of 30 records, half of them in a snapshot, as a crash leaves it.
func killed(t *testing.T) *vfs.MemFS {
	t.Helper()
	base := vfs.NewCrashableMem()
	s := open(t, store.Options{Dir: workDir, FS: base})
	for i := range 30 {
		if i == 15 {
			if err := s.Compact([]byte("15")); err != nil {
				t.Fatal(err)
			}
		}
		appendAll(t, s, fmt.Sprint("r", i+1))
	}
	left := base.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return left
}

// again returns a copy of a memory disk, which the caller may change.
func again(disk *vfs.MemFS) *vfs.MemFS {
	return disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

func checkKilled(t *testing.T, disk *vfs.MemFS, want int, what string) {
	t.Helper()
	s := open(t, store.Options{Dir: workDir, FS: disk})
	snapshot, records := contents(t, s)
	if got := rebuild(snapshot, records); len(got) != want || got[len(got)-1] != fmt.Sprint("r", want) {
		t.Fatalf("%s: %d records, the last is %q", what, len(got), got[len(got)-1])
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// K7: the power fails at any change of the disk during a snapshot. The state is complete; it is the same before and
// after the snapshot.
func TestK7ACrashDuringASnapshotLosesNothing(t *testing.T) {
	base, crashes := killed(t), 0
	for n := int64(1); ; n++ {
		left := crashDuring(t, again(base), n, 7, func(s *store.Store) error { return s.Compact([]byte("30")) })
		if left == nil {
			break
		}
		crashes++
		checkKilled(t, left, 30, fmt.Sprint("crash before change ", n))
	}
	if crashes < 2 {
		t.Fatalf("only %d crashes", crashes)
	}
}

// K8: the power fails five times in a row during the opening of the store, at any change of the disk. Nothing is lost,
// and no files accumulate.
func TestK8CrashesDuringRecoveryLoseNothingAndAccumulateNoFiles(t *testing.T) {
	base, crashes := killed(t), 0
	for n := int64(1); ; n++ {
		disk, reached := again(base), false
		for round := range uint64(5) {
			left := crashOpening(t, disk, n, round)
			if left == nil {
				break
			}
			disk, reached = left, true
			crashes++
		}
		if !reached {
			break
		}
		s := open(t, store.Options{Dir: workDir, FS: disk})
		if bytes := s.Metrics().Bytes; bytes > 200_000 {
			t.Errorf("crashes before change %d left %d bytes", n, bytes)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		checkKilled(t, disk, 30, fmt.Sprint("five crashes before change ", n))
		names, err := disk.List(workDir)
		if err != nil || len(names) > 15 {
			t.Errorf("crashes before change %d left %d files: %s (%v)", n, len(names), strings.Join(names, " "), err)
		}
	}
	if t.Logf("%d crashes", crashes); crashes < 50 {
		t.Fatalf("only %d crashes", crashes)
	}
}

// D10: snapshots bound the size of the store on disk and the records that an opening reads, for any number of records.
func TestD10SnapshotsBoundTheStore(t *testing.T) {
	fsys := vfs.NewMem()
	s := open(t, store.Options{Dir: workDir, FS: fsys})
	const every = 2000
	record := []byte(strings.Repeat("lease", 20))
	most := uint64(0)
	for round := range 40 {
		batch := make([][]byte, every)
		for i := range batch {
			batch[i] = record
		}
		if err := s.Append(batch); err != nil {
			t.Fatal(err)
		}
		if err := s.Compact([]byte(strings.Repeat("state", 1000))); err != nil {
			t.Fatal(err)
		}
		if most = max(most, s.Metrics().Bytes); most > 40<<20 {
			t.Fatalf("%d MiB after %d records", most>>20, (round+1)*every)
		}
	}
	t.Logf("at most %d KiB for %d records of %d bytes", most>>10, 40*every, len(record))
	if _, records := contents(t, s); len(records) != 0 {
		t.Fatalf("%d records after the snapshot", len(records))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
