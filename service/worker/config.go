package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"time"

	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/internal/monitor"
)

// These are the defaults of a Config.
const (
	DefaultWindowBytes        = 256 << 20
	DefaultSlotBytes          = 1 << 30
	DefaultDispatcherTimeout  = 60 * time.Second
	DefaultCheckpointInterval = 10 * time.Second
	DefaultCheckpointShare    = 0.01
	DefaultDrainTimeout       = 5 * time.Second
	DefaultCacheOrphanAfter   = 10 * time.Minute
	maxStreamsLimit           = 1024
)

// These are the kinds of a worker.
const (
	KindLocal  = "local"
	KindRemote = "remote"
)

// Config is the configuration of a worker.
type Config struct {
	// Dispatcher is HOST:PORT, with or without pecan:// before it, unix:PATH or unix:@NAME.
	Dispatcher string
	// Listen is the HOST:PORT of the data plane; port 0 picks one.
	Listen string
	// Advertise is the HOST:PORT by which readers reach it; empty: the address it listens on.
	Advertise string
	// MaxStreams bounds the streams that run at once.
	MaxStreams int
	// WindowBytes bounds the ready elements of all streams together.
	WindowBytes int64
	// SlotBytes bounds the shared memory per connection. Elements that do not fit go through the socket.
	SlotBytes int64
	// CacheDir stores the elements of cache() steps. All workers of a service must see it. If it is empty, these
	// steps do nothing.
	CacheDir string
	// CacheBytes bounds the size of all files in CacheDir; 0: no bound.
	CacheBytes int64
	// CacheWriteRate bounds the bytes that this worker writes into CacheDir in a second; 0: no bound.
	CacheWriteRate int64
	// CacheCompress compresses segments also if the directory is faster than the compressor.
	CacheCompress bool
	// CacheOrphanAfter is the age at which a file that no cache needs is removed.
	CacheOrphanAfter time.Duration
	// Kind is local if this worker serves the trainers on its host only, else remote.
	Kind string
	// TrainerID is the trainer that started this worker; empty: none did.
	TrainerID string
	// DispatcherTimeout bounds the wait for the first contact.
	DispatcherTimeout time.Duration
	// CheckpointDir is a directory that all workers see. Streams that are expensive to run again are saved
	// there. If it is empty, no checkpoints are taken.
	CheckpointDir string
	// CheckpointInterval is the shortest time between two checkpoints of a stream. CheckpointShare is the
	// largest share of the worker's time that checkpoints may use.
	CheckpointInterval time.Duration
	CheckpointShare    float64
	// DrainTimeout bounds how long a stopping worker serves what it holds before it says goodbye.
	DrainTimeout time.Duration
	// Threads is the size of TensorFlow's thread pools; 0: one thread per core.
	Threads int
	// Version is the version of this build, for messages.
	Version string
	// Log receives all log records; nil: slog's default.
	Log *slog.Logger
	// ListenOn and Dial access the network; nil: the network of this host.
	ListenOn func(network, address string) (net.Listener, error)
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	// OnCrash registers a function that is called when native code crashes the process; nil: crashes are not
	// reported.
	OnCrash func(tell func(cause string)) (forget func(), err error)
	// MetricsListen is the HOST:PORT of the metrics page; empty: there is none.
	MetricsListen string
	// Ready is called once, when the worker is registered and serves at this address.
	Ready func(address string)
}

// DefaultMaxStreams is one stream per core, at least two.
func DefaultMaxStreams() int { return min(max(2, runtime.NumCPU()), 16) }

// Validate returns every problem of c.
func (c *Config) Validate() error {
	var err error
	add := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	err = errors.Join(check.Dial("--dispatcher", c.Dispatcher), check.Listen("--listen", c.Listen, false))
	err = errors.Join(err, monitor.Validate(c.MetricsListen))
	if c.Advertise != "" {
		err = errors.Join(err, check.Reachable("--advertise", c.Advertise))
	}
	if c.MaxStreams < 1 || c.MaxStreams > maxStreamsLimit {
		add("--max-streams %d: want 1 to %d", c.MaxStreams, maxStreamsLimit)
	}
	err = errors.Join(err, check.Bytes("--window-bytes", c.WindowBytes, 1<<20), check.Bytes("--shared-memory-bytes", c.SlotBytes, 0))
	if c.Kind != KindLocal && c.Kind != KindRemote {
		add("--kind %q: want %s or %s", c.Kind, KindLocal, KindRemote)
	}
	if c.TrainerID != "" && c.Kind != KindLocal {
		add("--trainer %s: only a worker with --kind %s belongs to a trainer", c.TrainerID, KindLocal)
	}
	err = errors.Join(err, check.Bytes("--cache-bytes", c.CacheBytes, 0))
	if c.CacheWriteRate != 0 {
		err = errors.Join(err, check.Bytes("--cache-write-rate", c.CacheWriteRate, 1<<20))
	}
	if c.CacheDir != "" {
		err = errors.Join(err, check.Duration("--cache-orphan-after", c.CacheOrphanAfter, time.Millisecond))
	}
	err = errors.Join(err, check.Duration("--dispatcher-timeout", c.DispatcherTimeout, time.Millisecond))
	if c.CheckpointDir != "" {
		err = errors.Join(err, check.Duration("--checkpoint-interval", c.CheckpointInterval, time.Millisecond))
		if !(c.CheckpointShare > 0 && c.CheckpointShare <= 1) {
			add("--checkpoint-share %v: want more than 0 and up to 1, as in --checkpoint-share 0.01", c.CheckpointShare)
		}
	}
	err = errors.Join(err, check.Duration("--drain-timeout", c.DrainTimeout, 0))
	if c.Threads < 0 || c.Threads > 4096 {
		add("--threads %d: want 0 (one per core) to 4096", c.Threads)
	}
	return err
}

// errUnreachable is wrapped by Run if the dispatcher was never reached.
var errUnreachable = errors.New("the dispatcher cannot be reached")
