package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/multierr"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/hostid"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/internal/monitor"
)

// Worker is one pecan-worker.
type Worker struct {
	config Config
	log    *slog.Logger
	hostID string

	lifetime context.Context
	running  sync.WaitGroup
	contexts struct {
		plain *tf.Context
		// pulling runs the graphs with our source op, which blocks a thread of the pool while it waits for another graph:
		// in one pool the waiting ones could take every thread from those they wait for.
		pulling *tf.Context
	}
	graphs  planner
	server  *server
	session *session
	ledger  *ledger
	tables  *tables
	trials  *trials
	// caches is nil without a directory for them.
	caches *caches
	// checkpoints is nil where none are taken.
	checkpoints *checkpoints

	// leaving: the worker is about to say goodbye.
	leaving atomic.Bool
	// marks and greetings number what the dispatcher is told of suspicious elements, and connections to it.
	marks, greetings atomic.Uint64
	// runs is the number of streams that run now, windowBytes what all windows hold, insideBytes what the buffers of
	// tf.data inside their graphs held when they were last looked at.
	runs        atomic.Int64
	windowBytes atomic.Int64
	insideBytes atomic.Int64
	counts      counts
	// id changes when the worker joins another cluster.
	id      atomic.Pointer[string]
	cluster atomic.Pointer[string]

	mu      sync.Mutex
	streams map[streamKey]*stream
	// arrived is closed and replaced whenever a stream is added.
	arrived chan struct{}

	// alone is held while an element is made that may have killed workers: if it kills this one, it is known which it was.
	alone exclusive
	// openings are under way.
	openings openings

	// writers are the newest runs that write files of a cache or a snapshot.
	writersMu sync.Mutex
	writers   map[fileKey]*run
}

// Run runs a worker until ctx ends or it cannot go on.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	w, err := start(ctx, config)
	if err != nil {
		return err
	}
	if config.OnCrash != nil {
		forget, err := config.OnCrash(w.crashes)
		if err != nil {
			return multierr.Append(err, w.close())
		}
		defer forget()
	}
	registry := monitor.New()
	registry.MustRegister(newCollector(w))
	stopMetrics, err := monitor.Start(config.MetricsListen, registry, w.session.ready, w.log)
	if err != nil {
		return multierr.Append(err, w.close())
	}
	defer stopMetrics()
	// The session outlives ctx until readers have what they can get.
	leaving, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	stop := context.AfterFunc(ctx, func() {
		w.drain(leaving)
		leave()
	})
	defer stop()
	return multierr.Append(w.session.run(leaving), w.close())
}

// start makes a worker that listens and has not spoken to the dispatcher.
func start(ctx context.Context, config Config) (w *Worker, err error) {
	config.Dispatcher = check.Target(config.Dispatcher)
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if config.ListenOn == nil {
		config.ListenOn = net.Listen
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout, Control: bound}).DialContext
	}
	w = &Worker{config: config, streams: map[streamKey]*stream{}, writers: map[fileKey]*run{}, arrived: make(chan struct{}), alone: make(exclusive, 1)}
	w.openings.turns = make(chan struct{}, runtime.NumCPU())
	w.rename()
	w.log = config.Log.With("worker", w.workerID())
	if w.caches, err = openCaches(w); err != nil {
		return nil, err
	}
	if w.hostID, err = hostid.Get(); err != nil {
		w.log.Warn("shared memory is off: this host cannot be named", "error", err)
	}
	if config.CheckpointDir != "" {
		if w.checkpoints, err = openCheckpoints(config.CheckpointDir); err != nil {
			return nil, err
		}
		if err := w.checkpoints.expire(time.Now().Add(-abandoned)); err != nil {
			w.log.Warn("remove abandoned checkpoints", "error", err)
		}
	}
	if w.server, err = listen(w); err != nil {
		return nil, err
	}
	if err := w.startTensorFlow(); err != nil {
		return nil, multierr.Append(err, w.server.close())
	}
	// Streams end when the worker closes, not with ctx: a worker that stops says goodbye first.
	lifetime, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.lifetime = lifetime
	w.server.stopStreams = cancel
	w.session, w.ledger, w.tables = newSession(w), newLedger(), newTables(w.log)
	w.trials = newTrials(w)
	w.graphs = newGraphs(w.session.fetchGraph)
	w.server.serve()
	return w, nil
}

func (w *Worker) startTensorFlow() (err error) {
	threads := w.config.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	if w.contexts.plain, err = tf.NewContext(tf.ContextOptions{InterOpThreads: threads, IntraOpThreads: threads}); err != nil {
		return err
	}
	waiting := tf.ContextOptions{InterOpThreads: threads + w.config.MaxStreams, IntraOpThreads: threads}
	if w.caches != nil {
		w.caches.context = sync.OnceValues(func() (*tf.Context, error) { return tf.NewContext(waiting) })
	}
	w.contexts.pulling, err = tf.NewContext(waiting)
	return err
}

// close ends every stream and connection and waits for them, for a bounded time: an operation that reads from a dead
// mount never ends, and the process can.
func (w *Worker) close() error {
	w.stopAll(reason.New(reason.Closed, "worker %s is stopping", w.describe()))
	w.server.stopStreams()
	err := w.server.close()
	done := make(chan struct{})
	go func() {
		w.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		// Its streams are with others by now, or nobody's: nothing is lost with the process, and what is freed here goes with it.
		w.log.Warn("an operation of TensorFlow cannot be ended, the process ends without it", "waited", closeTimeout, "streams", w.runs.Load())
		if w.checkpoints != nil {
			err = multierr.Append(err, w.checkpoints.root.Close())
		}
		return err
	}
	w.contexts.plain.Close()
	w.contexts.pulling.Close()
	if w.checkpoints != nil {
		err = multierr.Append(err, w.checkpoints.root.Close())
	}
	return multierr.Append(err, w.caches.close())
}

// closeTimeout bounds the wait for the cancelled runs of a worker that stops, beside the drain timeout.
const closeTimeout = 5 * time.Second

func newID() string {
	var b [8]byte
	// crypto/rand never fails.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// describe names the worker for people: its id and where it is.
func (w *Worker) describe() string { return fmt.Sprintf("%s (%s)", w.workerID(), w.server.advertised) }

func (w *Worker) clusterID() string { return *w.cluster.Load() }

func (w *Worker) workerID() string { return *w.id.Load() }

// rename makes this a worker that no cluster knows.
func (w *Worker) rename() {
	id, none := newID(), ""
	w.id.Store(&id)
	w.cluster.Store(&none)
}

func (w *Worker) localAddress() string { return w.server.reach() }

// start runs a stream, or brings one that runs up to date.
func (w *Worker) start(order *pecanv1.StartStream) {
	key := keyOf(order.GetId())
	w.mu.Lock()
	if held := w.streams[key]; held != nil {
		w.mu.Unlock()
		held.update(order)
		return
	}
	s := newStream(w, order)
	w.streams[key] = s
	close(w.arrived)
	w.arrived = make(chan struct{})
	s.begin()
	w.mu.Unlock()
	s.log.Info("stream starts", "lease", order.GetLease(), "closing", order.GetClosing(), "ahead", order.GetPrefetch())
}

// stop ends a stream that is held under the lease or an older one; lease 0 means any. If the dispatcher wants to know, it is told when
// nothing of the stream is open any more.
func (w *Worker) stop(command *pecanv1.StopStream) {
	key, lease := keyOf(command.GetId()), command.GetLease()
	w.mu.Lock()
	s := w.streams[key]
	if s != nil && (lease == 0 || s.leaseNow() <= lease) {
		delete(w.streams, key)
	} else {
		s = nil
	}
	w.mu.Unlock()
	if s != nil {
		s.stop(reason.New(reason.StreamUnknown, "stream %d was taken from worker %s", key.stream, w.describe()))
		s.log.Info("stream taken back", "lease", lease)
		if lease == 0 && w.checkpoints != nil {
			// Its epoch is over.
			w.running.Go(func() { w.forgetCheckpoints(s) })
		}
	}
	if !command.GetConfirm() {
		return
	}
	w.running.Go(func() {
		if s != nil {
			<-s.closed()
		}
		w.session.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Stopped{Stopped: &pecanv1.StreamStopped{Id: key.id()}}})
	})
}

// fileKey names the files that a stream's caches and snapshots write: their paths are in the graph, and those of each stream its own.
type fileKey struct {
	fingerprint     string
	stream, streams uint32
}

// follow makes a run the newest over its files, and gives what is closed when the one before it has ended, if that was stopped. One that is
// not stopped may go on for ever; both then meet TensorFlow's own check, as two iterators of one trainer do locally.
func (w *Worker) follow(r *run) <-chan struct{} {
	key := fileKey{r.order.GetFingerprint(), r.order.GetId().GetStream(), uint32(r.order.GetPlan().GetNumStreams())}
	w.writersMu.Lock()
	defer w.writersMu.Unlock()
	before := w.writers[key]
	w.writers[key] = r
	context.AfterFunc(r.ctx, func() {
		<-r.done
		w.writersMu.Lock()
		defer w.writersMu.Unlock()
		if w.writers[key] == r {
			delete(w.writers, key)
		}
	})
	if before == nil || before.ctx.Err() == nil {
		return nil
	}
	return before.done
}

// stopAll ends every stream.
func (w *Worker) stopAll(why *reason.Error) int {
	w.mu.Lock()
	streams := w.streams
	w.streams = map[streamKey]*stream{}
	w.mu.Unlock()
	for _, s := range streams {
		s.stop(why)
	}
	return len(streams)
}

// held gives every stream.
func (w *Worker) held() []*stream {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*stream, 0, len(w.streams))
	for _, s := range w.streams {
		all = append(all, s)
	}
	return all
}

// openWait is how long a reader that was faster than the dispatcher's command waits for its stream.
const openWait = 5 * time.Second

// find gives the stream, held under the lease that the reader has from the dispatcher or a newer one.
func (w *Worker) find(ctx context.Context, key streamKey, lease uint64) (*stream, *reason.Error) {
	timeout := time.NewTimer(openWait)
	defer timeout.Stop()
	for {
		w.mu.Lock()
		s, arrived := w.streams[key], w.arrived
		w.mu.Unlock()
		var changed <-chan struct{}
		if s != nil {
			now, next := s.leaseAndChange()
			if now >= lease {
				return s, nil
			}
			changed = next
		}
		select {
		case <-arrived:
		case <-changed:
		case <-ctx.Done():
			return nil, reason.New(reason.Closed, "the connection ended")
		case <-timeout.C:
			return nil, reason.New(reason.StreamUnknown, "worker %s does not hold stream %d of epoch %d of job %s under lease %d",
				w.describe(), key.stream, key.epoch, key.job, lease)
		}
	}
}

// report tells the dispatcher how a stream stands.
func (w *Worker) report(s *stream) { w.session.send(s.report()...) }
