package worker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/hostid"
	"github.com/pecan-ml/pecan/proto/hostload"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/internal/monitor"
	"github.com/pecan-ml/pecan/service/worker/cachefill"
	"github.com/pecan-ml/pecan/service/worker/checkpoint"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"github.com/pecan-ml/pecan/service/worker/identity"
	"github.com/pecan-ml/pecan/service/worker/profile"
	"github.com/pecan-ml/pecan/service/worker/run"
	"github.com/pecan-ml/pecan/service/worker/serve"
	"github.com/pecan-ml/pecan/service/worker/trial"
)

// Worker is one pecan-worker: its parts and their connections.
type Worker struct {
	config   Config
	log      *slog.Logger
	hostID   string
	host     *hostload.Sampler
	begun    time.Time
	identity *identity.Identity
	running  sync.WaitGroup
	// endLifetime ends the lifetime of streams and trials.
	endLifetime context.CancelFunc

	streams *run.Streams
	server  *serve.Server
	session *session
	trials  *trial.Queue

	// departing is set if the worker is about to say goodbye. departure begins that once.
	departing atomic.Bool
	departure sync.Once
	// leaving is the context of the session. leave ends it.
	leaving context.Context
	leave   context.CancelFunc
	// handshakes numbers the handshakes with the dispatcher.
	handshakes atomic.Uint64
}

// Run runs a worker until ctx ends or an error stops it.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	w, err := start(ctx, config)
	if err != nil {
		return err
	}
	if config.OnCrash != nil {
		forget, err := config.OnCrash(w.reportCrash)
		if err != nil {
			return errors.Join(err, w.close())
		}
		defer forget()
	}
	registry := monitor.New()
	registry.MustRegister(newCollector(w))
	stopMetrics, err := monitor.Start(config.MetricsListen, registry, w.session.ready, w.log)
	if err != nil {
		return errors.Join(err, w.close())
	}
	defer stopMetrics()
	stop := context.AfterFunc(ctx, func() { w.depart("it was asked to stop", config.DrainTimeout) })
	defer stop()
	return errors.Join(w.session.run(w.leaving), w.close())
}

// start makes a worker that listens but has not contacted the dispatcher.
func start(ctx context.Context, config Config) (w *Worker, err error) {
	config.Dispatcher = check.Target(config.Dispatcher)
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if config.ListenOn == nil {
		config.ListenOn = net.Listen
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout, Control: setUserTimeout}).DialContext
	}
	w = &Worker{config: config, identity: identity.New(), begun: time.Now()}
	// The session outlives ctx until readers have received what they can.
	w.leaving, w.leave = context.WithCancel(context.WithoutCancel(ctx))
	w.log = config.Log.With("worker", w.identity.ID())
	w.session, w.streams = newSession(w), run.New(w.log)
	if err := w.openDirectories(); err != nil {
		return nil, err
	}
	if w.hostID, err = hostid.Get(); err != nil {
		w.log.Warn("shared memory is off: this host has no id", "error", err)
	}
	w.host = hostload.New(w.hostID)
	if w.server, err = serve.Listen(w.log, w.identity, w.streams, serve.Options{
		Listen: config.Listen, Advertise: config.Advertise, Dispatcher: config.Dispatcher, ListenOn: config.ListenOn, Version: config.Version,
		SlotBytes: config.SlotBytes, SharedMemory: w.hostID != "",
	}); err != nil {
		return nil, err
	}
	if err := w.startTensorFlow(); err != nil {
		return nil, errors.Join(err, w.server.Close())
	}
	// Streams end when the worker closes, not with ctx: a worker that stops says goodbye first.
	lifetime, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.endLifetime = cancel
	streams := w.streams
	streams.Options = run.Options{
		Version: config.Version, MaxStreams: config.MaxStreams, WindowBytes: config.WindowBytes, CheckpointInterval: config.CheckpointInterval,
		CheckpointShare: config.CheckpointShare, Dial: config.Dial,
	}
	streams.Identity, streams.Lifetime, streams.Running, streams.Dispatcher = w.identity, lifetime, &w.running, w.session
	streams.Graphs, streams.Totals = dataset.NewStore(w.session.fetchGraph), profile.NewTotals(runtime.NumCPU())
	w.trials = &trial.Queue{
		Log: w.log, Identity: w.identity, Lifetime: lifetime, Running: &w.running, Send: w.session.Send, Graphs: streams.Graphs,
		AcquireOpening: streams.AcquireOpening,
	}
	w.server.Serve()
	return w, nil
}

// openDirectories opens the directories of caches and checkpoints that are configured.
func (w *Worker) openDirectories() (err error) {
	if w.config.CacheDir != "" {
		if w.streams.Caches, err = cachefill.Open(w.config.CacheDir, w.config.CacheBytes); err != nil {
			return err
		}
		c := w.streams.Caches
		c.Log, c.Send, c.Running, c.Compress, c.OrphanAfter = w.log, w.session.Send, &w.running, w.config.CacheCompress, w.config.CacheOrphanAfter
		c.Cluster, c.Worker = w.identity.Cluster, w.identity.ID()
		c.LimitWriting(w.config.CacheWriteRate)
	}
	if w.config.CheckpointDir != "" {
		if w.streams.Checkpoints, err = checkpoint.Open(w.config.CheckpointDir); err != nil {
			return err
		}
		if err := w.streams.Checkpoints.Expire(time.Now().Add(-checkpoint.Abandoned)); err != nil {
			w.log.Warn("removing abandoned checkpoints failed", "error", err)
		}
	}
	return nil
}

func (w *Worker) startTensorFlow() (err error) {
	threads := w.config.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	if w.streams.Plain, err = tf.NewContext(tf.ContextOptions{InterOpThreads: threads, IntraOpThreads: threads}); err != nil {
		return err
	}
	// A stream may wait in two graphs at once: the closing stream of a group waits for remainders and for its first half.
	waiting := tf.ContextOptions{InterOpThreads: threads + 2*w.config.MaxStreams, IntraOpThreads: threads}
	if w.streams.Caches != nil {
		w.streams.Caches.Runtime = sync.OnceValues(func() (*tf.Context, error) { return tf.NewContext(waiting) })
	}
	w.streams.Pulling, err = tf.NewContext(waiting)
	return err
}

// close ends every stream and connection. It waits for them up to closeTimeout: an operation on a dead mount
// never returns.
func (w *Worker) close() error {
	w.leave()
	w.streams.StopAll(reason.New(reason.Closed, "worker %s is stopping", w.identity))
	w.endLifetime()
	err := w.server.Close()
	done := make(chan struct{})
	go func() {
		w.running.Wait()
		// Deleting an idle iterator waits for its autotuning thread, which TensorFlow may wake up to a minute late.
		w.streams.Close()
		w.streams.Plain.Close()
		w.streams.Pulling.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		// Other workers have the streams by now. The process ends, which frees everything.
		w.log.Warn("a TensorFlow operation does not end; the process ends without it", "waited", closeTimeout, "streams", w.streams.Load().Running)
		if w.streams.Checkpoints != nil {
			err = errors.Join(err, w.streams.Checkpoints.Close())
		}
		return err
	}
	if w.streams.Checkpoints != nil {
		err = errors.Join(err, w.streams.Checkpoints.Close())
	}
	return errors.Join(err, w.streams.Caches.Close())
}

// closeTimeout bounds the wait for cancelled runs when a worker stops, in addition to the drain timeout.
const closeTimeout = 5 * time.Second
