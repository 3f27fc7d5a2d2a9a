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
	// counted: the current write counts for hooks.
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

// kept is the store of one process on the disk.
type kept struct {
	disk   *disk
	store  *store.Store
	failed chan struct{}
	once   sync.Once
	// gone: the store's process is dead, and nothing it does counts.
	gone atomic.Bool
}

var errGone = errors.New("the process is dead")

func (d *disk) open() (*kept, error) {
	k := &kept{disk: d, failed: make(chan struct{})}
	err := k.do(func() (err error) {
		k.store, err = store.Open(store.Options{Dir: "work", FS: errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.inject))})
		return err
	})
	return k, err
}

// do runs a call of the store, and closes failed if the store has failed.
func (k *kept) do(call func() error) (err error) {
	if k.gone.Load() {
		return errGone
	}
	dead := false
	k.disk.outside.run(func() {
		err = call()
		if k.store != nil {
			select {
			case <-k.store.Failed():
				dead = true
			default:
			}
		}
	})
	if dead {
		k.once.Do(func() { close(k.failed) })
	}
	if k.gone.Load() {
		return errGone
	}
	return err
}

func (k *kept) Dir() string             { return "work" }
func (k *kept) Failed() <-chan struct{} { return k.failed }
func (k *kept) Metrics() (f store.Metrics) {
	_ = k.do(func() error { f = k.store.Metrics(); return nil })
	return f
}
func (k *kept) Load(snapshot, record func([]byte) error) error {
	return k.do(func() error { return k.store.Load(snapshot, record) })
}
func (k *kept) Append(records [][]byte) error {
	if len(records) == 0 {
		return nil
	}
	d := k.disk
	counts := d.counts(records)
	if counts && !k.gone.Load() {
		d.call(beforeWrite)
	}
	d.counted.Store(counts)
	defer d.counted.Store(false)
	err := k.do(func() error { return k.store.Append(records) })
	switch {
	case k.gone.Load():
	case d.caught.Load():
		d.call(beforeSync)
	case counts && err == nil:
		d.call(beforeAnswer)
	}
	if k.gone.Load() {
		return errGone
	}
	return err
}
func (k *kept) Compact(snapshot []byte) error {
	return k.do(func() error { return k.store.Compact(snapshot) })
}
func (k *kept) PutGraph(fingerprint string, graph []byte) error {
	return k.do(func() error { return k.store.PutGraph(fingerprint, graph) })
}
func (k *kept) Graph(fingerprint string) (graph []byte, err error) {
	err = k.do(func() error { graph, err = k.store.Graph(fingerprint); return err })
	return graph, err
}
func (k *kept) Graphs() (all []string, err error) {
	err = k.do(func() error { all, err = k.store.Graphs(); return err })
	return all, err
}
func (k *kept) DeleteGraph(fingerprint string) error {
	return k.do(func() error { return k.store.DeleteGraph(fingerprint) })
}

// close frees memory. A dead process writes nothing any more.
func (k *kept) close() {
	k.disk.outside.run(func() { _ = k.store.Close() })
}
