package sim

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/store"
)

// outside runs functions outside the bubble, so that their goroutines do not belong to it. A caller that waits
// for one is not durably blocked, so the fake clock stands still meanwhile.
type outside struct {
	mu    sync.Mutex
	calls chan func()
	done  chan struct{}
}

func newOutside() *outside {
	o := &outside{calls: make(chan func()), done: make(chan struct{})}
	go func() {
		for call := range o.calls {
			call()
			o.done <- struct{}{}
		}
	}()
	return o
}

func (o *outside) run(call func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls <- call
	<-o.done
}

func (o *outside) close() { close(o.calls) }

// disk is the dispatcher's disk. It keeps what was synced, and a crash keeps some of the rest.
type disk struct {
	outside *outside
	rng     *rand.Rand
	mem     *vfs.MemFS
	// broken is the error of every write from now on.
	broken atomic.Pointer[error]
	// hits counts failed writes.
	hits atomic.Int64
	// hooks are points at which a test lets the dispatcher die. The hook before a sync copies the disk outside
	// the bubble, and is called inside the bubble after the write.
	hooks  [3]atomic.Pointer[func()]
	caught atomic.Bool
	// only restricts the hooks to writes with such a record; nil: all writes.
	only atomic.Pointer[func(*pecanv1.Record) bool]
	// counted is set if the current write counts for hooks.
	counted atomic.Bool
}

// counts reports whether the hooks apply to these records.
func (d *disk) counts(records [][]byte) bool {
	only := d.only.Load()
	if only == nil {
		return true
	}
	for _, data := range records {
		record := new(pecanv1.Record)
		if proto.Unmarshal(data, record) == nil && (*only)(record) {
			return true
		}
	}
	return false
}

// arm sets or clears a hook.
func (d *disk) arm(at point, hook func()) {
	if hook == nil {
		d.hooks[at].Store(nil)
		return
	}
	d.hooks[at].Store(&hook)
}

// call calls a hook once if it is set.
func (d *disk) call(at point) bool {
	hook := d.hooks[at].Swap(nil)
	if hook != nil {
		(*hook)()
	}
	return hook != nil
}

func newDisk(o *outside, rng *rand.Rand) *disk {
	return &disk{outside: o, rng: rng, mem: vfs.NewCrashableMem()}
}

var (
	errFull   error = &os.PathError{Op: "write", Path: "work", Err: syscall.ENOSPC}
	errBroken error = &os.PathError{Op: "write", Path: "work", Err: syscall.EIO}
)

// inject makes writes fail while the disk is broken.
func (d *disk) inject(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		if d.counted.Load() && d.hooks[beforeSync].Load() != nil && strings.HasSuffix(op.Path, ".log") && !d.caught.Swap(true) {
			d.crashHere()
		}
	case errorfs.OpFileWrite, errorfs.OpCreate:
	default:
		return nil
	}
	if err := d.broken.Load(); err != nil {
		d.hits.Add(1)
		return *err
	}
	return nil
}

// crash leaves what a power failure at this moment would leave: the synced data and some of the rest.
func (d *disk) crash() {
	if d.caught.Swap(false) {
		// The crash came before the sync.
		return
	}
	d.outside.run(func() { d.crashHere() })
}

func (d *disk) crashHere() {
	d.mem = d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: d.rng.IntN(3) * 50, RNG: d.rng})
}

// simStore is the store of one process on the disk.
type simStore struct {
	disk   *disk
	store  *store.Store
	failed chan struct{}
	once   sync.Once
	// dead is set if the store's process is dead, and its writes have no effect.
	dead atomic.Bool
}

var errDead = errors.New("the process is dead")

func (d *disk) open() (*simStore, error) {
	s := &simStore{disk: d, failed: make(chan struct{})}
	err := s.do(func() (err error) {
		s.store, err = store.Open(store.Options{Dir: "work", FS: errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.inject))})
		return err
	})
	return s, err
}

// do runs a call of the store, and closes failed if the store has failed.
func (s *simStore) do(call func() error) (err error) {
	if s.dead.Load() {
		return errDead
	}
	failed := false
	s.disk.outside.run(func() {
		err = call()
		if s.store != nil {
			select {
			case <-s.store.Failed():
				failed = true
			default:
			}
		}
	})
	if failed {
		s.once.Do(func() { close(s.failed) })
	}
	if s.dead.Load() {
		return errDead
	}
	return err
}

func (s *simStore) Dir() string             { return "work" }
func (s *simStore) Failed() <-chan struct{} { return s.failed }
func (s *simStore) Metrics() (f store.Metrics) {
	_ = s.do(func() error { f = s.store.Metrics(); return nil })
	return f
}
func (s *simStore) Load(snapshot, record func([]byte) error) error {
	return s.do(func() error { return s.store.Load(snapshot, record) })
}
func (s *simStore) Append(records [][]byte) error {
	if len(records) == 0 {
		return nil
	}
	d := s.disk
	counts := d.counts(records)
	if counts && !s.dead.Load() {
		d.call(beforeWrite)
	}
	d.counted.Store(counts)
	defer d.counted.Store(false)
	err := s.do(func() error { return s.store.Append(records) })
	switch {
	case s.dead.Load():
	case d.caught.Load():
		d.call(beforeSync)
	case counts && err == nil:
		d.call(beforeResponse)
	}
	if s.dead.Load() {
		return errDead
	}
	return err
}
func (s *simStore) Compact(snapshot []byte) error {
	return s.do(func() error { return s.store.Compact(snapshot) })
}
func (s *simStore) PutGraph(fingerprint string, graph []byte) error {
	return s.do(func() error { return s.store.PutGraph(fingerprint, graph) })
}
func (s *simStore) Graph(fingerprint string) (graph []byte, err error) {
	err = s.do(func() error { graph, err = s.store.Graph(fingerprint); return err })
	return graph, err
}
func (s *simStore) Graphs() (all []string, err error) {
	err = s.do(func() error { all, err = s.store.Graphs(); return err })
	return all, err
}
func (s *simStore) DeleteGraph(fingerprint string) error {
	return s.do(func() error { return s.store.DeleteGraph(fingerprint) })
}

// close frees memory. A dead process writes nothing more.
func (s *simStore) close() {
	s.disk.outside.run(func() { _ = s.store.Close() })
}
