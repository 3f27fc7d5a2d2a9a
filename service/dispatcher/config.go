package dispatcher

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/caching"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/learned"
	"github.com/pecan-ml/pecan/service/provision"
	"github.com/pecan-ml/pecan/service/store"
)

// Store keeps records and graphs. Package store has a durable one and one in memory. Store has more than 7 methods, because one
// directory keeps both: a graph and the record that names it share its lock and its failure.
type Store interface {
	Journal
	GraphStore
}

// Journal keeps records.
type Journal interface {
	// Dir is empty if nothing survives the process.
	Dir() string
	Load(snapshot, record func(data []byte) error) error
	Append(records [][]byte) error
	Compact(snapshot []byte) error
	// Metrics returns the size of the store.
	Metrics() store.Metrics
	// Failed is closed when the store can no longer be written.
	Failed() <-chan struct{}
}

// GraphStore keeps graphs by their fingerprints.
type GraphStore interface {
	PutGraph(fingerprint string, graph []byte) error
	Graph(fingerprint string) ([]byte, error)
	DeleteGraph(fingerprint string) error
	// Graphs returns the fingerprints of all stored graphs, also of incomplete ones.
	Graphs() (fingerprints []string, err error)
}

// Config is the configuration of a dispatcher.
type Config struct {
	Core core.Config
	// MaxGraphBytes bounds a serialised graph.
	MaxGraphBytes int64
	// MaxUploadBytes bounds the announced bytes of all uploads at once.
	MaxUploadBytes int64
	// UploadWait is how long an upload waits for space before it is refused.
	UploadWait time.Duration
	// UploadIdle is how long an upload may take for its next MiB, or for its rest.
	UploadIdle time.Duration
	// CompactEvery is the number of records after which a snapshot replaces the journal.
	CompactEvery int
	// TickPeriod is the period in which timeouts are checked.
	TickPeriod time.Duration
	// Version is reported to clients.
	Version string
}

// DefaultConfig returns the defaults of pecan-dispatcher's flags.
func DefaultConfig() Config {
	return Config{
		Core: core.DefaultConfig(), MaxGraphBytes: 256 << 20, MaxUploadBytes: 1 << 30, UploadWait: 10 * time.Second, UploadIdle: 30 * time.Second,
		CompactEvery: 20_000, TickPeriod: 100 * time.Millisecond,
	}
}

// minSilence is the shortest timeout that may cost a peer its state. With less, a healthy peer seems dead
// whenever a busy host delays a few of its heartbeats.
const minSilence = 100 * time.Millisecond

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	err := errors.Join(
		check.Duration("--heartbeat", c.Core.Heartbeat, time.Millisecond),
		check.Duration("--worker-suspect-after", c.Core.SuspectAfter, 1),
		check.Duration("--worker-dead-after", c.Core.DeadAfter, minSilence),
		check.Duration("--worker-return-grace", c.Core.ReturnGrace, 0),
		check.Duration("--client-timeout", c.Core.ClientTimeout, minSilence),
		check.Duration("--job-timeout", c.Core.JobTimeout, 0),
		check.Duration("--dataset-timeout", c.Core.DatasetTimeout, 0),
		check.Bytes("--cache-quota", c.Core.CacheQuota, 0),
		check.Duration("--cache-ttl", c.Core.CacheTTL, 0),
		check.Duration("lease time", c.Core.LeaseTTL, 1),
		check.Duration("consumer slice", c.Core.ConsumerSlice, 0),
		check.Duration("wait of uploads", c.UploadWait, 1),
		check.Duration("--upload-idle-timeout", c.UploadIdle, minSilence),
		check.Bytes("--max-graph-bytes", c.MaxGraphBytes, 1),
		check.Bytes("--max-upload-bytes", c.MaxUploadBytes, 1),
	)
	err = errors.Join(err, c.Core.Validate())
	if c.MaxGraphBytes > graph.MostBytes {
		err = errors.Join(err, fmt.Errorf("--max-graph-bytes %d: a serialised graph has at most %d bytes (2 GiB)", c.MaxGraphBytes, graph.MostBytes))
	}
	if c.MaxUploadBytes < c.MaxGraphBytes {
		err = errors.Join(err, fmt.Errorf("--max-upload-bytes %d: must be at least the largest graph of %d bytes (--max-graph-bytes)", c.MaxUploadBytes, c.MaxGraphBytes))
	}
	if c.CompactEvery < 1 {
		err = errors.Join(err, fmt.Errorf("snapshot every %d records: must be positive", c.CompactEvery))
	}
	if c.TickPeriod <= 0 {
		err = errors.Join(err, fmt.Errorf("tick period %v: must be positive", c.TickPeriod))
	}
	seen := map[string]bool{}
	for _, address := range c.Core.WorkerAddresses {
		whole := address
		if net.ParseIP(address) != nil || address != "" && !strings.Contains(address, ":") {
			// A HOST means any one worker on that host.
			whole = net.JoinHostPort(address, "1")
		}
		if wrong := check.Reachable("--worker-addresses", whole); wrong != nil {
			err = errors.Join(err, fmt.Errorf("%w; a HOST alone means any one worker on that host", wrong))
		}
		if seen[address] {
			err = errors.Join(err, fmt.Errorf("--worker-addresses: %q is listed twice", address))
		}
		seen[address] = true
	}
	return err
}

// Deps are the dispatcher's dependencies.
type Deps struct {
	Store  Store
	Graphs Graphs
	Clock  clock.Clock
	// Rand returns unguessable bytes.
	Rand io.Reader
	Log  *slog.Logger
	// Prices returns the prices of a job with a type of trainer, and their currency, which is only shown; nil without a table of
	// prices.
	Prices func(trainerType string) (p autoscale.Prices, currency string, err error)
	// StoragePrice returns the price of a byte of caches for an hour; nil if it costs nothing.
	StoragePrice func() float64
	// ChooseCache decides which step of a job is cached, or says what it waits for; nil for caching.Decide.
	ChooseCache func(measure.Caching, caching.Prices) (decided *pecanv1.CacheDecision, waitsFor string)
	// Decisions gets a line of JSON for each decision on the workers of a job; nil for none.
	Decisions io.Writer
	// Provider starts and stops the remote workers; nil if somebody else does. Config.Core.Fleet has its name and limits. The
	// caller closes it after Serve.
	Provider provision.Provider
	// Learned keeps what was learned from jobs for other dispatchers; nil if only the store has it.
	Learned *learned.Dir
	// Metrics registers the dispatcher's metrics; nil if nobody scrapes them.
	Metrics prometheus.Registerer
}

func (d Deps) validate(c Config) error {
	if d.Store == nil || d.Graphs == nil || d.Clock == nil || d.Rand == nil || d.Log == nil {
		return errors.New("a dispatcher needs a store, graphs, a clock, a random source and a log")
	}
	if (d.Provider != nil) != (c.Core.Fleet.Provider != "") {
		return errors.New("a dispatcher needs a provider of workers exactly if its configuration names one")
	}
	return nil
}
