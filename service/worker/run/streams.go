package run

import (
	"context"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

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
	// Send queues messages for the session that is up; without one they are dropped.
	Send(messages ...*pecanv1.WorkerMessage)
	// API is the dispatcher's service; nil before it was dialled.
	API() pecanv1.DispatcherClient
}

// Options are what of a worker's configuration is about its streams.
type Options struct {
	// Version of this build, for peers.
	Version string
	// MaxStreams run at once.
	MaxStreams int
	// WindowBytes of ready elements that all streams together keep.
	WindowBytes int64
	// CheckpointInterval is the shortest time between two checkpoints of a stream, CheckpointShare the most that they may take of the worker's time.
	CheckpointInterval time.Duration
	CheckpointShare    float64
	// Dial reaches other workers.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Streams are the streams that a worker holds, and what they share. The exported fields are set before the first stream starts.
type Streams struct {
	Options  Options
	Log      *slog.Logger
	Identity *identity.Identity
	// Lifetime ends when the worker closes; Running are the goroutines that it then waits for.
	Lifetime   context.Context
	Running    *sync.WaitGroup
	Dispatcher Dispatcher
	// Graphs gives the graphs of streams.
	Graphs dataset.Planner
	// Plain runs graphs. Pulling runs those with our source op, which blocks a thread of the pool while it waits for another graph:
	// in one pool the waiting ones could take every thread from those they wait for.
	Plain, Pulling *tf.Context
	// Totals sums up what the runs did, for the dispatcher.
	Totals *profile.Totals
	// Caches is nil without a directory for them.
	Caches *cachefill.Directory
	// Checkpoints is nil where none are taken.
	Checkpoints *checkpoint.Dir

	tables *dataset.Tables
	// marks number what the dispatcher is told of suspicious elements.
	marks atomic.Uint64
	// runs is the number of streams that run now, windowBytes what all windows hold, insideBytes what the buffers of
	// tf.data inside their graphs held when they were last looked at.
	runs          atomic.Int64
	windowBytes   atomic.Int64
	bufferedBytes atomic.Int64
	counts        counts

	mu      sync.Mutex
	streams map[streamKey]*Stream
	// arrived is closed and replaced whenever a stream is added.
	arrived chan struct{}

	// exclusive is held while an element is made that may have killed workers: if it kills this one, it is known which it was.
	exclusive exclusive
	// openings are under way.
	openings openings

	// writers are the newest runs that write files of a cache or a snapshot.
	writersMu sync.Mutex
	writers   map[fileKey]*run
}

// New makes a worker's streams, of which there are none yet.
func New(log *slog.Logger) *Streams {
	w := &Streams{Log: log, tables: dataset.NewTables(log), streams: map[streamKey]*Stream{}, writers: map[fileKey]*run{}, arrived: make(chan struct{}), exclusive: make(exclusive, 1)}
	w.openings.turns = make(chan struct{}, runtime.NumCPU())
	return w
}

// Start runs a stream, or brings one that runs up to date.
func (w *Streams) Start(order *pecanv1.StartStream) {
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

// Stop ends a stream that is held under the lease or an older one; lease 0 means any. If the dispatcher wants to know, it is told when
// nothing of the stream is open any more.
func (w *Streams) Stop(command *pecanv1.StopStream) {
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
		s.stop(reason.New(reason.StreamUnknown, "stream %d was taken from worker %s", key.stream, w.Identity))
		s.log.Info("stream taken back", "lease", lease)
		if lease == 0 && w.Checkpoints != nil {
			// Its epoch is over.
			w.Running.Go(func() { w.removeCheckpoints(s) })
		}
	}
	if !command.GetConfirm() {
		return
	}
	w.Running.Go(func() {
		if s != nil {
			<-s.closed()
		}
		w.Dispatcher.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Stopped{Stopped: &pecanv1.StreamStopped{Id: key.id()}}})
	})
}

// StopAll ends every stream.
func (w *Streams) StopAll(why *reason.Error) int {
	w.mu.Lock()
	streams := w.streams
	w.streams = map[streamKey]*Stream{}
	w.mu.Unlock()
	for _, s := range streams {
		s.stop(why)
	}
	return len(streams)
}

// held gives every stream.
func (w *Streams) held() []*Stream {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*Stream, 0, len(w.streams))
	for _, s := range w.streams {
		all = append(all, s)
	}
	return all
}

// HeldStreams gives every stream as a hello reports it.
func (w *Streams) HeldStreams() (all []*pecanv1.HeldStream) {
	for _, s := range w.held() {
		all = append(all, s.held())
	}
	return all
}

// ReportAll tells the dispatcher how every stream stands.
func (w *Streams) ReportAll() {
	for _, s := range w.held() {
		w.report(s)
	}
}
