package core

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// Config holds the settings of the core. All durations are of the monotonic clock.
type Config struct {
	// Heartbeat is the shortest period of the workers' heartbeats. heartbeat_period.go makes it longer for large fleets.
	Heartbeat time.Duration
	// A worker that is silent for SuspectAfter gets no new streams. After DeadAfter its streams move. SuspectAfter grows with
	// the period of heartbeats, DeadAfter does not.
	SuspectAfter, DeadAfter time.Duration
	// ReturnGrace is how long a worker keeps its streams after its session broke. A worker that reconnects at
	// once loses nothing.
	ReturnGrace time.Duration
	// ClientTimeout is how long a client may be silent before it is removed.
	ClientTimeout time.Duration
	// JobTimeout is how long a named job stays after its last client left. A private job ends with its client.
	JobTimeout time.Duration
	// DatasetTimeout is how long a dataset stays after its last job ended. 0 keeps datasets forever.
	DatasetTimeout time.Duration
	// LeaseTTL is how long a worker serves without contact. It is long, because readers refuse older leases
	// anyway, and workers continue while the dispatcher is away.
	LeaseTTL time.Duration
	// ConsumerSlice is how long a consumer keeps a stream before a starving one may get it.
	ConsumerSlice time.Duration
	// A stream fails its job after MaxCrashes of its workers in a row without progress, or after MaxDeaths of any
	// cause.
	MaxCrashes, MaxDeaths int
	// MaxFailures of a stream fail its epoch, if another worker might have succeeded.
	MaxFailures int
	// MaxJobs, MaxClients and MaxDatasets bound memory and the journal.
	MaxJobs, MaxClients, MaxDatasets int
	// MaxEpochs bounds the open epochs of one job, so that one trainer cannot take all resources.
	MaxEpochs int
	// WorkerAddresses, if set, are the only accepted workers. Each address has its position for static sharding.
	WorkerAddresses []string
	// Fleet bounds the remote workers that a provider starts and stops.
	Fleet fleet.Limits
	// CacheQuota bounds the bytes of all caches; 0: no bound. A cache that no epoch has used for CacheTTL is evicted; 0: never.
	CacheQuota int64
	CacheTTL   time.Duration
	// CacheMode says whether streams compute, write or read at cached steps.
	CacheMode CacheMode
	// DecideUnmeasured lets decisions on caches be made before anything is measured. The caller's policy must not need costs.
	DecideUnmeasured bool
	// NeverFollow keeps streams from waiting for parts that other jobs compute.
	NeverFollow bool
	// CacheShared is set if jobs read caches that jobs of other tenants wrote.
	CacheShared bool
	// Tenants has the weights and quotas of tenants. If it is nil, all tenants are equal; else jobs of others are refused.
	Tenants map[string]schedule.Tenant
}

// CacheMode says whether streams compute, write or read at cached steps. Modes other than CacheAuto are for comparisons.
type CacheMode string

// The modes: a stream reads its segment if there is one and writes one otherwise; uses no cache; writes in any case; reads or
// computes.
const (
	CacheAuto    CacheMode = "auto"
	CacheCompute CacheMode = "compute"
	CachePut     CacheMode = "put"
	CacheGet     CacheMode = "get"
)

// DefaultConfig returns the defaults of pecan-dispatcher's flags.
func DefaultConfig() Config {
	return Config{
		Heartbeat: time.Second, SuspectAfter: 3 * time.Second, DeadAfter: 10 * time.Second, ReturnGrace: time.Second,
		ClientTimeout: time.Minute, JobTimeout: 5 * time.Minute, LeaseTTL: 10 * time.Minute, ConsumerSlice: 2 * time.Second,
		MaxCrashes: 3, MaxDeaths: 12, MaxFailures: 3, MaxJobs: 10_000, MaxClients: 10_000, MaxDatasets: 100_000, MaxEpochs: 1000,
		CacheTTL: 7 * 24 * time.Hour, CacheMode: CacheAuto,
	}
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var err error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"heartbeat period", c.Heartbeat}, {"worker suspect time", c.SuspectAfter}, {"worker dead time", c.DeadAfter},
		{"lease time", c.LeaseTTL}, {"client timeout", c.ClientTimeout},
	} {
		if d.value <= 0 {
			err = errors.Join(err, fmt.Errorf("%s %v: must be positive", d.name, d.value))
		}
	}
	if c.ReturnGrace < 0 || c.JobTimeout < 0 || c.DatasetTimeout < 0 || c.ConsumerSlice < 0 {
		err = errors.Join(err, errors.New("worker grace, job timeout, dataset timeout and consumer slice must not be negative"))
	}
	if c.SuspectAfter < c.Heartbeat || c.DeadAfter < c.SuspectAfter {
		err = errors.Join(err, fmt.Errorf("heartbeat period %v, worker suspect time %v and worker dead time %v: each must be at least the one before", c.Heartbeat, c.SuspectAfter, c.DeadAfter))
	}
	if c.MaxJobs < 1 || c.MaxClients < 1 || c.MaxDatasets < 1 || c.MaxEpochs < 1 {
		err = errors.Join(err, fmt.Errorf("--max-jobs %d, --max-clients %d, --max-datasets %d, --max-epochs %d: each must be at least 1", c.MaxJobs, c.MaxClients, c.MaxDatasets, c.MaxEpochs))
	}
	if c.MaxCrashes < 1 || c.MaxDeaths < c.MaxCrashes || c.MaxFailures < 1 {
		err = errors.Join(err, fmt.Errorf("at most %d crashes, %d deaths and %d failures of a stream: each must be at least 1, and deaths at least as many as crashes", c.MaxCrashes, c.MaxDeaths, c.MaxFailures))
	}
	if !slices.Contains([]CacheMode{"", CacheAuto, CacheCompute, CachePut, CacheGet}, c.CacheMode) {
		err = errors.Join(err, fmt.Errorf("--cache-mode %q: must be %s, %s, %s or %s", c.CacheMode, CacheAuto, CacheCompute, CachePut, CacheGet))
	}
	if f := c.Fleet; f.Provider != "" && (f.Min < 0 || f.Max < max(f.Min, 1) || f.Idle < 0 || f.Drain < 0) {
		err = errors.Join(err, fmt.Errorf("--min-workers %d, --max-workers %d, --workers-idle-time %v, --workers-drain-timeout %v: none may be negative, and --max-workers must be at least 1 and at least --min-workers", f.Min, f.Max, f.Idle, f.Drain))
	}
	return err
}
