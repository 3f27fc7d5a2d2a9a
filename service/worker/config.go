package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"go.uber.org/multierr"

	"github.com/pecan-ml/pecan/service/internal/check"
)

// Defaults of a Config.
const (
	DefaultWindowBytes       = 256 << 20
	DefaultSlotBytes         = 1 << 30
	DefaultDispatcherTimeout = 60 * time.Second
	// defaultMaxElement is the largest element when the job names none.
	defaultMaxElement = 2 << 30
	maxStreamsLimit   = 1024
)

// Placements of a worker.
const (
	PlacementLocal  = "local"
	PlacementRemote = "remote"
)

// Config is what a worker is started with.
type Config struct {
	// Dispatcher is HOST:PORT, with or without pecan:// before it, unix:PATH or unix:@NAME.
	Dispatcher string
	// Listen is the HOST:PORT of the data plane; port 0 picks one.
	Listen string
	// Advertise is the HOST:PORT by which readers reach it; empty: the address it listens on.
	Advertise string
	// MaxStreams that run at once.
	MaxStreams int
	// WindowBytes of ready elements that all streams together keep.
	WindowBytes int64
	// SlotBytes of shared memory per connection; what does not fit goes through the socket.
	SlotBytes int64
	// Placement is local when a trainer's embedded service started this worker, else remote.
	Placement string
	// DispatcherTimeout bounds the wait for the first contact.
	DispatcherTimeout time.Duration
	// Threads of TensorFlow's pools; 0: one per core.
	Threads int
	// Version of this build, for messages.
	Version string
	// Log gets everything; nil: slog's default.
	Log *slog.Logger
	// Ready is called once, when the worker is registered and serves at this address.
	Ready func(address string)
}

// DefaultMaxStreams is one stream per core, at least two.
func DefaultMaxStreams() int { return min(max(2, runtime.NumCPU()), 16) }

// Validate tells everything that is wrong with c.
func (c *Config) Validate() error {
	var err error
	add := func(format string, args ...any) { err = multierr.Append(err, fmt.Errorf(format, args...)) }
	err = multierr.Append(check.Dial("--dispatcher", c.Dispatcher), check.Listen("--listen", c.Listen, false))
	if c.Advertise != "" {
		err = multierr.Append(err, check.Reachable("--advertise", c.Advertise))
	}
	if c.MaxStreams < 1 || c.MaxStreams > maxStreamsLimit {
		add("--max-streams %d: want 1 to %d", c.MaxStreams, maxStreamsLimit)
	}
	err = multierr.Combine(err, check.Bytes("--window-bytes", c.WindowBytes, 1<<20), check.Bytes("--shared-memory-bytes", c.SlotBytes, 0))
	if c.Placement != PlacementLocal && c.Placement != PlacementRemote {
		add("--placement %q: want %s or %s", c.Placement, PlacementLocal, PlacementRemote)
	}
	err = multierr.Append(err, check.Duration("--dispatcher-timeout", c.DispatcherTimeout, time.Millisecond))
	if c.Threads < 0 || c.Threads > 4096 {
		add("--threads %d: want 0 (one per core) to 4096", c.Threads)
	}
	return err
}

// errUnreachable is wrapped by Run when the dispatcher was never reached.
var errUnreachable = errors.New("the dispatcher cannot be reached")
