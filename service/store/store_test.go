package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/pecan-ml/pecan/service/store"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The store abandons a failed database. Pebble cannot close a database whose writes fail, and the process ends soon.
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2/record.(*LogWriter).flushLoop"),
		goleak.IgnoreAnyFunction("github.com/pecan-ml/pecan/service/store.(*pebbleLog).Fatalf"),
		goleak.IgnoreAnyFunction("github.com/pecan-ml/pecan/service/store.(*pebbleLog).background"),
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2.Open"),
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2/internal/genericcache.(*shard[...]).releaseLoop"),
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2.(*cleanupManager).mainLoop"),
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2.(*ConcurrencyLimitScheduler).periodicGranter"),
	)
}

func open(t *testing.T, opts store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// contents reads the snapshot and the records.
func contents(t *testing.T, s *store.Store) (snapshot string, records []string) {
	t.Helper()
	err := s.Load(func(data []byte) error {
		snapshot = string(data)
		return nil
	}, func(data []byte) error {
		records = append(records, string(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return snapshot, records
}

func appendAll(t *testing.T, s *store.Store, records ...string) {
	t.Helper()
	var data [][]byte
	for _, record := range records {
		data = append(data, []byte(record))
	}
	if err := s.Append(data); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsSnapshotsAndGraphsSurviveReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	s := open(t, store.Options{Dir: dir})
	appendAll(t, s, "a", "b")
	appendAll(t, s, "c")
	graph := bytes.Repeat([]byte("graph "), 700_000)
	if err := s.PutGraph("f1", graph); err != nil {
		t.Fatal(err)
	}
	if err := s.PutGraph("f1", graph); err != nil {
		t.Fatalf("the same graph again: %v", err)
	}
	if err := s.PutGraph("f10", nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, store.Options{Dir: dir})
	if snapshot, records := contents(t, s); snapshot != "" || !slices.Equal(records, []string{"a", "b", "c"}) {
		t.Fatalf("read %q %q", snapshot, records)
	}
	if got, err := s.Graph("f1"); err != nil || !bytes.Equal(got, graph) {
		t.Fatalf("graph of %d bytes, %v", len(got), err)
	}
	big := strings.Repeat("snapshot ", 400_000)
	if err := s.Compact([]byte(big)); err != nil {
		t.Fatal(err)
	}
	appendAll(t, s, "d")
	if err := s.DeleteGraph("f1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, store.Options{Dir: dir})
	if snapshot, records := contents(t, s); snapshot != big || !slices.Equal(records, []string{"d"}) {
		t.Fatalf("read %d bytes, %q", len(snapshot), records)
	}
	if _, err := s.Graph("f1"); !errors.Is(err, store.ErrNoGraph) {
		t.Fatalf("deleted graph: %v", err)
	}
	if _, err := s.Graph("f10"); err != nil {
		t.Fatalf("a graph whose name begins with that of a deleted graph: %v", err)
	}
	if err := s.Compact([]byte("small")); err != nil {
		t.Fatal(err)
	}
	if snapshot, records := contents(t, s); snapshot != "small" || records != nil {
		t.Fatalf("read %q %q", snapshot, records)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A crash at any time leaves the acknowledged records and a prefix of the others.
func TestCrashesLoseNothingAcknowledged(t *testing.T) {
	seeds := uint64(15)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			fs := vfs.NewCrashableMem()
			var acknowledged []string
			var snapshotOf int
			for round := range 4 {
				s := open(t, store.Options{Dir: "work", FS: fs})
				snapshot, records := contents(t, s)
				checkPrefix(t, snapshot, records, acknowledged, snapshotOf)
				acknowledged, snapshotOf = rebuild(snapshot, records), atoi(snapshot)
				crash := fs.CrashClone(vfs.CrashCloneCfg{})
				for i := range 1 + rng.IntN(20) {
					switch rng.IntN(8) {
					case 0:
						if err := s.Compact([]byte(fmt.Sprint(len(acknowledged)))); err != nil {
							t.Fatal(err)
						}
						snapshotOf = len(acknowledged)
					case 1:
						name := fmt.Sprint("graph-", round, "-", i)
						if err := s.PutGraph(name, bytes.Repeat([]byte(name), 120_000)); err != nil {
							t.Fatal(err)
						}
					default:
						record := fmt.Sprint("r", len(acknowledged)+1)
						appendAll(t, s, record)
						acknowledged = append(acknowledged, record)
					}
					// The disk as a crash would leave it now: all synced data and some of the unsynced data.
					crash = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(rng.IntN(3)) * 50, RNG: rng})
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				fs = crash
			}
		})
	}
}

func atoi(text string) int {
	n := 0
	fmt.Sscan(text, &n)
	return n
}

// rebuild returns all records, from the snapshot (their number) and the records after it.
func rebuild(snapshot string, records []string) []string {
	var all []string
	for i := range atoi(snapshot) {
		all = append(all, fmt.Sprint("r", i+1))
	}
	return append(all, records...)
}

func checkPrefix(t *testing.T, snapshot string, records, acknowledged []string, snapshotOf int) {
	t.Helper()
	got := rebuild(snapshot, records)
	if len(got) < len(acknowledged) {
		t.Fatalf("%d records came back, %d were acknowledged", len(got), len(acknowledged))
	}
	for i, record := range got {
		if record != fmt.Sprint("r", i+1) {
			t.Fatalf("record %d is %q", i+1, record)
		}
	}
	if atoi(snapshot) < snapshotOf {
		t.Fatalf("snapshot of %q records, that of %d was acknowledged", snapshot, snapshotOf)
	}
}

// The disk fails during an append. The store accepts no further calls, and its acknowledged records remain.
func TestAFailedWriteFailsTheStore(t *testing.T) {
	base := vfs.NewCrashableMem()
	var broken atomic.Bool
	fs := errorfs.Wrap(base, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo || op.Kind == errorfs.OpFileWrite) {
			return errors.New("no space left on device")
		}
		return nil
	}))
	s := open(t, store.Options{Dir: "work", FS: fs})
	appendAll(t, s, "r1")
	broken.Store(true)
	err := s.Append([][]byte{[]byte("r2")})
	if !errors.Is(err, store.ErrFailed) {
		t.Fatalf("append on a broken disk: %v", err)
	}
	select {
	case <-s.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("the store does not report its failure")
	}
	broken.Store(false)
	if err := s.Append([][]byte{[]byte("r3")}); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("append after a failure: %v", err)
	}
	if err := s.PutGraph("f", []byte("g")); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("graph after a failure: %v", err)
	}
	again := open(t, store.Options{Dir: "work", FS: base.CrashClone(vfs.CrashCloneCfg{})})
	_, records := contents(t, again)
	if len(records) == 0 || records[0] != "r1" || slices.Contains(records, "r3") {
		t.Fatalf("after the failure: %q", records)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// A write after the failure would have the number of the record that failed.
func TestAFailedStoreWritesNothing(t *testing.T) {
	base := vfs.NewCrashableMem()
	var broken atomic.Bool
	var writes atomic.Int64
	fs := errorfs.Wrap(base, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpFileWrite && op.Kind != errorfs.OpFileWriteAt {
			return nil
		}
		writes.Add(1)
		if broken.Load() && strings.Contains(op.Path, "PECAN-MARK") {
			return errors.New("input/output error")
		}
		return nil
	}))
	s := open(t, store.Options{Dir: "work", FS: fs})
	appendAll(t, s, "r1")
	broken.Store(true)
	if err := s.Append([][]byte{[]byte("r2")}); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("append on a broken disk: %v", err)
	}
	broken.Store(false)
	before := writes.Load()
	for range 20 {
		if err := s.Append([][]byte{[]byte("late")}); !errors.Is(err, store.ErrFailed) {
			t.Fatalf("append after a failure: %v", err)
		}
	}
	// A write in the background would begin within this time.
	time.Sleep(50 * time.Millisecond)
	if n := writes.Load() - before; n != 0 {
		t.Errorf("%d writes after the failure", n)
	}
}

// The system accepts writes to removed open files. The store must not acknowledge such writes.
func TestARemovedDirectoryFailsTheStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	s := open(t, store.Options{Dir: dir})
	appendAll(t, s, "r1")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Append([][]byte{[]byte("r2")}); !errors.Is(err, store.ErrFailed) || !strings.Contains(err.Error(), "removed") {
		t.Fatalf("append after the removal of the directory: %v", err)
	}
	select {
	case <-s.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("the store does not report its failure")
	}
}

func TestOneOwnerAtATime(t *testing.T) {
	dir := t.TempDir()
	first := open(t, store.Options{Dir: dir})
	if _, err := store.Open(store.Options{Dir: dir}); !errors.Is(err, store.ErrInUse) {
		t.Fatalf("second owner: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := open(t, store.Options{Dir: dir})
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, dir string) string {
	t.Helper()
	work := t.TempDir()
	if err := os.CopyFS(work, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return work
}

func TestMemoryKeepsGraphsOnly(t *testing.T) {
	m := store.NewMemory()
	if err := m.Append([][]byte{[]byte("r")}); err != nil {
		t.Fatal(err)
	}
	if err := m.PutGraph("f", []byte("g")); err != nil {
		t.Fatal(err)
	}
	if graph, err := m.Graph("f"); err != nil || string(graph) != "g" {
		t.Fatalf("graph %q, %v", graph, err)
	}
	if err := m.DeleteGraph("f"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Graph("f"); !errors.Is(err, store.ErrNoGraph) {
		t.Fatalf("deleted graph: %v", err)
	}
	if m.Dir() != "" {
		t.Fatal("memory has a directory")
	}
}
