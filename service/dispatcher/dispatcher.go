package dispatcher

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/metrics"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
)

// Dispatcher is the service. New makes it, Serve runs it, and the context of Serve ends it.
type Dispatcher struct {
	pecanv1.UnimplementedDispatcherServer
	cfg     Config
	deps    Deps
	check   *validate.Checker
	metrics *metrics.Metrics
	started time.Duration
	// uploads bounds the bytes of all uploads at once.
	uploads *semaphore.Weighted

	// mu guards the core and the order of pending, which is the order of decisions.
	mu                   sync.Mutex
	core                 *core.Core
	pending              []*entry
	recordsSinceSnapshot int
	// wake has a token if pending may hold something.
	wake chan struct{}

	diskGate *diskGate
	statuses statusCalls

	// connectedMu guards the connected peers.
	connectedMu sync.Mutex
	nextID      uint64
	sessions    map[core.SessionID]*commandQueue
	watches     map[core.WatchID]*updateQueue

	// graphMu guards registering, which counts running registrations by fingerprint. The graphs that are being registered
	// must not be removed.
	graphMu     sync.Mutex
	registering map[string]int

	// planning counts plans of orders in progress. planningMu lets one run at a time, and guards allowed, which has the orders
	// that were checked.
	planning   sync.WaitGroup
	planningMu sync.Mutex
	allowed    map[string]bool
	// unkeptMu guards unkept, which has the graphs of which more is known than is kept. keepWake has a token if it may hold some.
	unkeptMu sync.Mutex
	unkept   map[string]bool
	keepWake chan struct{}
	// placingMu guards placer, which has the searches for workers.
	placingMu sync.Mutex
	placer    *placing.Placer
	// cachingMu lets one decision on a cache run at a time.
	cachingMu sync.Mutex
	// requested is what the provider of workers is asked for; nil before the first request. requestChanged has a token if it
	// may have changed.
	requested      atomic.Pointer[fleet.Request]
	requestChanged chan struct{}

	// stopping is closed when the service ends. failure has the error of a bad end.
	stopping chan struct{}
	stopOnce sync.Once
	failure  error
}

// entry is a decision that waits for the disk.
type entry struct {
	records [][]byte
	// snapshot, if set, contains all records up to this entry.
	snapshot []byte
	effects  []core.Effect
	counts   metrics.Counts
	reply    any
	err      error
	// done is closed when reply and err may be released.
	done chan struct{}
}

// New replays the store and makes a dispatcher.
func New(cfg Config, deps Deps) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure dispatcher: %w", err)
	}
	if err := deps.validate(cfg); err != nil {
		return nil, err
	}
	state, replayed, err := replay(deps.Store)
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{
		cfg: cfg, deps: deps, check: validate.NewChecker(), started: deps.Clock.Now(), core: core.New(cfg.Core, state),
		uploads: semaphore.NewWeighted(cfg.MaxUploadBytes), wake: make(chan struct{}, 1),
		sessions: map[core.SessionID]*commandQueue{}, watches: map[core.WatchID]*updateQueue{},
		placer: placing.New(), diskGate: newDiskGate(), registering: map[string]int{}, requestChanged: make(chan struct{}, 1), stopping: make(chan struct{}), recordsSinceSnapshot: replayed,
		allowed: map[string]bool{}, unkept: map[string]bool{}, keepWake: make(chan struct{}, 1),
	}
	d.metrics = metrics.New(metricsSource{d})
	if deps.Metrics != nil {
		if err := deps.Metrics.Register(d.metrics); err != nil {
			return nil, reason.New(reason.Internal, "register metrics: %w", err)
		}
	}
	cluster, err := d.randomID("c")
	if err != nil {
		return nil, err
	}
	e := d.decide(core.Start{ClusterID: cluster, UnixS: time.Now().Unix()})
	d.commit()
	if why, _ := d.diskGate.state(); why != nil {
		return nil, why
	}
	if <-e.done; e.err != nil {
		return nil, e.err
	}
	if err := d.removeOrphans(); err != nil {
		return nil, err
	}
	deps.Log.Info("the dispatcher has loaded its state", "cluster", state.ClusterID(), "records", state.Applied(), "replayed", replayed, "work_dir", deps.Store.Dir())
	return d, nil
}

// replay returns the state of a store, and the number of records applied after its snapshot.
func replay(journal Journal) (*durable.State, int, error) {
	state, replayed := durable.NewState(), 0
	err := journal.Load(func(snapshot []byte) error {
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

// Ready says why the dispatcher cannot serve; nil if it can.
func (d *Dispatcher) Ready() error {
	select {
	case <-d.stopping:
		return d.stopError()
	default:
	}
	if why, _ := d.diskGate.state(); why != nil {
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
	why, changed := d.diskGate.state()
	if why != nil {
		return nil, why
	}
	e := d.decide(input)
	for {
		select {
		case <-e.done:
			return e.reply, e.err
		case <-changed:
			// The decision waits for the disk and happens then. A repeated request gets the same answer.
			if why, changed = d.diskGate.state(); why != nil {
				return nil, why
			}
		case <-ctx.Done():
			return nil, reason.From(ctx.Err())
		case <-d.stopping:
			return nil, d.stopError()
		}
	}
}

// decide runs the core and queues the result. It does not wait.
func (d *Dispatcher) decide(input any) (e *entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			// The core may have stopped in the middle of a decision. Only the state on disk can be trusted.
			d.deps.Log.Error("the core failed", "input", fmt.Sprintf("%T", input), "panic", p, "stack", string(debug.Stack()))
			d.stop(reason.New(reason.Internal, "the dispatcher's core failed: %v", p))
			e = &entry{err: d.stopError(), done: make(chan struct{})}
		}
	}()
	result := d.core.Decide(input, d.deps.Clock.Now())
	e = &entry{effects: result.Effects, reply: result.Reply, err: result.Err, done: make(chan struct{})}
	for _, record := range result.Records {
		e.counts.Add(record)
		data, err := proto.Marshal(record)
		if err != nil {
			e.err = reason.New(reason.Internal, "write record: %w", err)
		}
		e.records = append(e.records, data)
	}
	if d.recordsSinceSnapshot += len(e.records); d.recordsSinceSnapshot >= d.cfg.CompactEvery {
		if snapshot, err := d.core.State().Marshal(); err == nil {
			e.snapshot, d.recordsSinceSnapshot = snapshot, 0
		}
	}
	if _, ok := input.(core.FromWorker); ok && len(e.records)+len(e.effects) == 0 && e.err == nil && e.snapshot == nil {
		// Most heartbeats change nothing durable. Nobody waits for a worker's message, so the disk has nothing to release.
		close(e.done)
		return e
	}
	d.pending = append(d.pending, e)
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return e
}

// randomID returns an unguessable id.
func (d *Dispatcher) randomID(prefix string) (string, error) {
	var b [12]byte
	if _, err := io.ReadFull(d.deps.Rand, b[:]); err != nil {
		return "", reason.New(reason.Internal, "draw an id: %w", err)
	}
	return prefix + "-" + hex.EncodeToString(b[:]), nil
}
