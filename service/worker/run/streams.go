package run

import (
	"context"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/cachefill"
	"github.com/pecan-ml/pecan/service/worker/checkpoint"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"github.com/pecan-ml/pecan/service/worker/identity"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// Dispatcher is what streams need of the session with the dispatcher.
type Dispatcher interface {
	// Send queues messages for the current session. Without a session they are dropped.
	Send(messages ...*pecanv1.WorkerMessage)
	// API is the dispatcher's service; nil before it was dialled.
	API() pecanv1.DispatcherClient
}

// Options are the part of a worker's configuration that concerns streams.
type Options struct {
	// Version of this build, for peers.
	Version string
	// MaxStreams run at once.
	MaxStreams int
	// WindowBytes bounds the ready elements of all streams together.
	WindowBytes int64
	// CheckpointInterval is the shortest time between two checkpoints of a stream. CheckpointShare is the
	// largest share of the worker's time that checkpoints may use.
	CheckpointInterval time.Duration
	CheckpointShare    float64
	// Dial connects to other workers.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Streams are the streams that a worker holds, and what they share. The exported fields are set before the first
// stream starts.
type Streams struct {
	Options  Options
	Log      *slog.Logger
	Identity *identity.Identity
	// Lifetime ends when the worker closes. The worker then waits for the goroutines in Running.
	Lifetime   context.Context
	Running    *sync.WaitGroup
	Dispatcher Dispatcher
	// Graphs instantiates the graphs of streams.
	Graphs dataset.Instantiator
	// Plain and Pulling are contexts of TensorFlow, each with its own pool of threads. Plain runs graphs that wait for
	// nothing else. Pulling runs graphs with the op PecanPull, which blocks a thread while it waits for another graph. In
	// one pool, waiting graphs could take every thread from those they wait for.
	Plain, Pulling *tf.Context
	// Totals sums the metrics of all runs for the dispatcher.
	Totals *profile.Totals
	// Caches is nil without a cache directory.
	Caches *cachefill.Directory
	// Checkpoints is nil if no checkpoints are taken.
	Checkpoints *checkpoint.Dir

	tables *dataset.Tables
	pool   pool
	// marks numbers the crash marks.
	marks atomic.Uint64
	// runs counts the streams that run now. windowBytes is what all windows hold. bufferedBytes is what
	// tf.data's buffers inside the graphs held at the last sample.
	runs          atomic.Int64
	windowBytes   atomic.Int64
	bufferedBytes atomic.Int64
	counts        counts

	mu      sync.Mutex
	streams map[pecanv1.StreamKey]*Stream
	// arrived is closed and replaced whenever a stream is added.
	arrived chan struct{}

	// exclusive is held while a suspicious element is produced. If the worker dies then, the element is known to
	// be the cause.
	exclusive *semaphore.Weighted
	// openings are the graphs that are being opened.
	openings openings

	// writers are the newest runs that write files of a cache or a snapshot.
	writersMu sync.Mutex
	writers   map[fileKey]*run
}

// New makes an empty set of streams.
func New(log *slog.Logger) *Streams {
	w := &Streams{Log: log, tables: dataset.NewTables(log), streams: map[pecanv1.StreamKey]*Stream{}, writers: map[fileKey]*run{}, arrived: make(chan struct{}), exclusive: semaphore.NewWeighted(1)}
	w.openings.limit, w.openings.lock = make(chan struct{}, runtime.NumCPU()), semaphore.NewWeighted(exclusively)
	w.pool.closing.SetLimit(maxClosing)
	return w
}

// Close frees the pooled iterators, and waits for that. Call it after all runs have ended.
func (ss *Streams) Close() { ss.pool.close() }

// Start runs a stream, or updates the stream that runs already.
func (ss *Streams) Start(command *pecanv1.StartStream) {
	key := command.GetId().Key()
	ss.mu.Lock()
	if held := ss.streams[key]; held != nil {
		ss.mu.Unlock()
		held.update(command)
		return
	}
	s := newStream(ss, command)
	ss.streams[key] = s
	close(ss.arrived)
	ss.arrived = make(chan struct{})
	s.begin()
	ss.mu.Unlock()
	s.log.Info("the stream starts", "lease", command.GetLease(), "closing", command.GetClosing(), "prefetch", command.GetPrefetch())
}

// Stop ends a stream that is held under this lease or an older one; lease 0 means any. If the dispatcher wants a
// confirmation, it is sent after the stream has released everything.
func (ss *Streams) Stop(command *pecanv1.StopStream) {
	key, lease := command.GetId().Key(), command.GetLease()
	ss.mu.Lock()
	s := ss.streams[key]
	if s != nil && (lease == 0 || s.leaseNow() <= lease) {
		delete(ss.streams, key)
	} else {
		s = nil
	}
	ss.mu.Unlock()
	if s != nil {
		s.stop(reason.New(reason.StreamUnknown, "stream %d was taken from worker %s", key.Stream, ss.Identity))
		s.log.Info("the dispatcher took the stream back", "lease", lease)
		if lease == 0 && ss.Checkpoints != nil {
			// The stream's epoch is over.
			ss.Running.Go(func() { ss.removeCheckpoints(s) })
		}
	}
	if !command.GetConfirm() {
		return
	}
	ss.Running.Go(func() {
		if s != nil {
			<-s.closed()
		}
		ss.Dispatcher.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Stopped{Stopped: &pecanv1.StreamStopped{Id: key.ID()}}})
	})
}

// StopAll ends every stream.
func (ss *Streams) StopAll(why *reason.Error) int {
	ss.mu.Lock()
	streams := ss.streams
	ss.streams = map[pecanv1.StreamKey]*Stream{}
	ss.mu.Unlock()
	for _, s := range streams {
		s.stop(why)
	}
	return len(streams)
}

// held returns every stream.
func (ss *Streams) held() []*Stream {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := make([]*Stream, 0, len(ss.streams))
	for _, s := range ss.streams {
		all = append(all, s)
	}
	return all
}

// HeldStreams returns every stream as a hello reports it.
func (ss *Streams) HeldStreams() (all []*pecanv1.HeldStream) {
	for _, s := range ss.held() {
		all = append(all, s.held())
	}
	return all
}

// ReportAll sends the state of every stream to the dispatcher.
func (ss *Streams) ReportAll() {
	for _, s := range ss.held() {
		ss.report(s)
	}
}
