package dispatcher

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
	"github.com/pecan-ml/pecan/service/store"
)

// Dispatcher is the service. Make it with New, serve it with Serve, end it by the context of Serve.
type Dispatcher struct {
	pecanv1.UnimplementedDispatcherServer
	cfg     Config
	deps    Deps
	check   *checker
	metrics *metrics
	started time.Duration
	// uploads bounds the bytes of graphs that are being received at once.
	uploads *semaphore.Weighted

	// mu guards the core, and the order of pending: entries are in the order of their decisions.
	mu           sync.Mutex
	core         *core.Core
	pending      []*entry
	sinceCompact int
	// wake has a token when pending may hold something.
	wake chan struct{}

	gate *gate

	// outMu guards who is connected.
	outMu    sync.Mutex
	nextID   uint64
	sessions map[core.SessionID]*session
	watches  map[core.WatchID]*watcher

	// graphMu guards arriving: registrations under way per fingerprint, whose graphs must not be forgotten.
	graphMu  sync.Mutex
	arriving map[string]int

	// planning are the orders of steps that are being planned, of which planMu lets one go on at a time.
	planning sync.WaitGroup
	planMu   sync.Mutex

	// stopping is closed when the service ends; failure says why when it ends badly.
	stopping chan struct{}
	stopOnce sync.Once
	failure  error
}

// entry is a decision on its way to the disk.
type entry struct {
	records [][]byte
	// snapshot, when set, stands for all records up to and including this entry's.
	snapshot []byte
	effects  []core.Effect
	figures  figures
	reply    any
	err      error
	// done is closed when reply and err may be told.
	done chan struct{}
}

// New replays the store and makes a dispatcher over it.
func New(cfg Config, deps Deps) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure dispatcher: %w", err)
	}
	if err := deps.validate(); err != nil {
		return nil, err
	}
	state, replayed, err := replay(deps.Store)
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{
		cfg: cfg, deps: deps, check: newChecker(), started: deps.Clock.Now(), core: core.New(cfg.Core, state),
		uploads: semaphore.NewWeighted(cfg.MaxUploadBytes), wake: make(chan struct{}, 1),
		sessions: map[core.SessionID]*session{}, watches: map[core.WatchID]*watcher{},
		gate: newGate(), arriving: map[string]int{}, stopping: make(chan struct{}), sinceCompact: replayed,
	}
	d.metrics = newMetrics(d)
	if deps.Metrics != nil {
		if err := deps.Metrics.Register(d.metrics); err != nil {
			return nil, reason.New(reason.Internal, "register metrics: %w", err)
		}
	}
	cluster, err := d.randomID("c")
	if err != nil {
		return nil, err
	}
	e := d.decide(core.Start{ClusterID: cluster})
	d.commit()
	if why, _ := d.gate.look(); why != nil {
		return nil, why
	}
	if <-e.done; e.err != nil {
		return nil, e.err
	}
	if err := d.forgetOrphans(); err != nil {
		return nil, err
	}
	deps.Log.Info("state ready", "cluster", state.ClusterID(), "records", state.Applied(), "replayed", replayed, "work_dir", deps.Store.Dir())
	return d, nil
}

// replay gives the state of a store and how many records were applied one by one.
func replay(store Store) (*durable.State, int, error) {
	state, replayed := durable.NewState(), 0
	err := store.Load(func(snapshot []byte) error {
		restored, err := durable.Restore(snapshot)
		if err == nil {
			state = restored
		}
		return err
	}, func(data []byte) error {
		record := &pecanv1.Record{}
		if err := proto.Unmarshal(data, record); err != nil {
			return err
		}
		replayed++
		return state.Apply(record)
	})
	if err != nil {
		return nil, 0, err
	}
	return state, replayed, nil
}

// Ready gives why nothing can be asked of the dispatcher, or nil.
func (d *Dispatcher) Ready() error {
	select {
	case <-d.stopping:
		return d.stopError()
	default:
	}
	if why, _ := d.gate.look(); why != nil {
		return why
	}
	return nil
}

// ClusterID names the cluster.
func (d *Dispatcher) ClusterID() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.State().ClusterID()
}

// submit takes a decision and waits until it is durable.
func (d *Dispatcher) submit(ctx context.Context, input any) (any, error) {
	why, changed := d.gate.look()
	if why != nil {
		return nil, why
	}
	e := d.decide(input)
	for {
		select {
		case <-e.done:
			return e.reply, e.err
		case <-changed:
			// It waits for the disk and becomes true then; whoever asks again gets the same answer.
			if why, changed = d.gate.look(); why != nil {
				return nil, why
			}
		case <-ctx.Done():
			return nil, reason.From(ctx.Err())
		case <-d.stopping:
			return nil, d.stopError()
		}
	}
}

// decide runs the core and queues what came out. It does not wait.
func (d *Dispatcher) decide(input any) (e *entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			// The core may be half way through a decision. Only what is on disk can be trusted now.
			d.deps.Log.Error("the core failed", "input", fmt.Sprintf("%T", input), "panic", p, "stack", string(debug.Stack()))
			d.stop(reason.New(reason.Internal, "the dispatcher's core failed: %v", p))
			e = &entry{err: d.stopError(), done: make(chan struct{})}
		}
	}()
	result := d.core.Decide(input, d.deps.Clock.Now())
	e = &entry{effects: result.Effects, reply: result.Reply, err: result.Err, done: make(chan struct{})}
	for _, record := range result.Records {
		e.figures.count(record)
		data, err := proto.Marshal(record)
		if err != nil {
			e.err = reason.New(reason.Internal, "write record: %w", err)
		}
		e.records = append(e.records, data)
	}
	if d.sinceCompact += len(e.records); d.sinceCompact >= d.cfg.CompactEvery {
		if snapshot, err := d.core.State().Marshal(); err == nil {
			e.snapshot, d.sinceCompact = snapshot, 0
		}
	}
	d.pending = append(d.pending, e)
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return e
}

// run writes decisions and lets time pass, until ctx ends or the store fails.
func (d *Dispatcher) run(ctx context.Context) error {
	ticks, stop := d.deps.Clock.NewTicker(d.cfg.TickPeriod)
	defer stop()
	for {
		select {
		case <-d.wake:
		case <-ticks:
			if why, _ := d.gate.look(); why == nil {
				d.decide(core.Tick{})
			}
		case <-d.deps.Store.Failed():
			d.stop(reason.New(reason.StoreCorrupt, "the store failed"))
		case <-ctx.Done():
			d.stop(nil)
		case <-d.stopping:
		}
		d.commit()
		select {
		case <-d.stopping:
			return d.failure
		default:
		}
	}
}

// stop ends the service, with an error when it ends badly.
func (d *Dispatcher) stop(err error) {
	d.stopOnce.Do(func() {
		d.failure = err
		close(d.stopping)
	})
}

func (d *Dispatcher) stopError() error {
	if d.failure != nil {
		return reason.New(reason.Unavailable, "the dispatcher stopped: %w", d.failure)
	}
	return reason.New(reason.Unavailable, "the dispatcher is stopping; try again when it is back")
}

// commit makes everything pending durable and then releases it. Only one goroutine calls it.
func (d *Dispatcher) commit() {
	d.mu.Lock()
	entries := d.pending
	d.pending = nil
	d.mu.Unlock()
	for len(entries) > 0 {
		group, records := 0, [][]byte(nil)
		for group < len(entries) {
			records = append(records, entries[group].records...)
			group++
			if entries[group-1].snapshot != nil {
				break
			}
		}
		begun := time.Now()
		err := d.deps.Store.Append(records)
		took := time.Since(begun)
		if errors.Is(err, store.ErrFull) {
			d.hold(entries, err)
			return
		}
		snapshot := entries[group-1].snapshot
		if err == nil && snapshot != nil {
			if err = d.deps.Store.Compact(snapshot); errors.Is(err, store.ErrFull) {
				// The records are there. The snapshot comes with the next of them.
				snapshot, err = nil, nil
				d.mu.Lock()
				d.sinceCompact = d.cfg.CompactEvery
				d.mu.Unlock()
			}
		}
		if err != nil {
			// What is on disk is not known. Nothing of this group, nor after it, is told to anybody.
			d.stop(err)
			return
		}
		d.release()
		d.metrics.committed(entries[:group], len(records), snapshot != nil, took)
		for _, e := range entries[:group] {
			for _, effect := range e.effects {
				d.perform(effect)
			}
			close(e.done)
		}
		entries = entries[group:]
	}
}

// perform does one effect of a durable decision.
func (d *Dispatcher) perform(effect core.Effect) {
	switch e := effect.(type) {
	case core.Command:
		d.outMu.Lock()
		s := d.sessions[e.Session]
		d.outMu.Unlock()
		if s != nil {
			s.push(e.Message)
		}
	case core.EndSession:
		d.outMu.Lock()
		s := d.sessions[e.Session]
		d.outMu.Unlock()
		if s != nil {
			s.end(e.Err)
		}
	case core.Update:
		d.outMu.Lock()
		w := d.watches[e.Watch]
		d.outMu.Unlock()
		if w != nil {
			w.push(e.Message)
		}
	case core.EndWatch:
		d.outMu.Lock()
		w := d.watches[e.Watch]
		d.outMu.Unlock()
		if w != nil {
			w.end(e.Err)
		}
	case rollout.PlanRequest:
		d.planOrder(e)
	case core.ForgetGraph:
		d.forgetGraph(e.Fingerprint)
	case core.Event:
		if e.Warn {
			d.deps.Log.Warn(e.Text, e.Args...)
		} else {
			d.deps.Log.Info(e.Text, e.Args...)
		}
	}
}

// randomID draws an id that cannot be guessed.
func (d *Dispatcher) randomID(prefix string) (string, error) {
	var b [12]byte
	if _, err := io.ReadFull(d.deps.Rand, b[:]); err != nil {
		return "", reason.New(reason.Internal, "draw an id: %w", err)
	}
	return prefix + "-" + hex.EncodeToString(b[:]), nil
}
