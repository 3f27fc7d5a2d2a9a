package core

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/multierr"
)

// Config is what the core's decisions depend on beside its inputs. All durations are of the monotonic clock.
type Config struct {
	// Heartbeat is the period that workers are told to beat in.
	Heartbeat time.Duration
	// SuspectAfter without a heartbeat a worker gets no new streams; DeadAfter its streams move.
	SuspectAfter, DeadAfter time.Duration
	// ReturnGrace is how long a worker whose session broke keeps its streams, so that one that connects again at once loses nothing.
	ReturnGrace time.Duration
	// ClientTimeout without a heartbeat a client is forgotten.
	ClientTimeout time.Duration
	// JobTimeout after its last client left a named job is forgotten; a private job goes with its client.
	JobTimeout time.Duration
	// DatasetTimeout after its last job went a dataset is forgotten. 0 keeps datasets for ever.
	DatasetTimeout time.Duration
	// LeaseTTL without contact a worker stops serving by itself. It is long: readers refuse older leases anyway, and workers
	// shall go on while the dispatcher is away.
	LeaseTTL time.Duration
	// ConsumerSlice is how long a consumer keeps a stream before a starving one may get it.
	ConsumerSlice time.Duration
	// MaxCrashes of workers in a row without progress, all while they ran one stream, fail the job; so do MaxDeaths, of whatever cause.
	MaxCrashes, MaxDeaths int
	// MaxFailures of a stream that another worker might not have had fail the epoch.
	MaxFailures int
	// MaxJobs, MaxClients and MaxDatasets bound what is held at once: each costs memory and room in the journal.
	MaxJobs, MaxClients, MaxDatasets int
	// MaxEpochs bounds how many epochs of one job are open at once, so that one trainer cannot take all there is.
	MaxEpochs int
	// WorkerAddresses, when there are any, are the only workers accepted, and give each its place for static sharding.
	WorkerAddresses []string
}

// DefaultConfig is what the flags of pecan-dispatcher default to.
func DefaultConfig() Config {
	return Config{
		Heartbeat: time.Second, SuspectAfter: 3 * time.Second, DeadAfter: 10 * time.Second, ReturnGrace: time.Second,
		ClientTimeout: time.Minute, JobTimeout: 5 * time.Minute, LeaseTTL: 10 * time.Minute, ConsumerSlice: 2 * time.Second,
		MaxCrashes: 3, MaxDeaths: 12, MaxFailures: 3, MaxJobs: 10_000, MaxClients: 10_000, MaxDatasets: 100_000, MaxEpochs: 1000,
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
			err = multierr.Append(err, fmt.Errorf("%s %v: must be positive", d.name, d.value))
		}
	}
	if c.ReturnGrace < 0 || c.JobTimeout < 0 || c.DatasetTimeout < 0 || c.ConsumerSlice < 0 {
		err = multierr.Append(err, errors.New("worker grace, job timeout, dataset timeout and consumer slice must not be negative"))
	}
	if c.SuspectAfter < c.Heartbeat || c.DeadAfter < c.SuspectAfter {
		err = multierr.Append(err, fmt.Errorf("heartbeat period %v, worker suspect time %v and worker dead time %v: each must be at least the one before", c.Heartbeat, c.SuspectAfter, c.DeadAfter))
	}
	if c.MaxJobs < 1 || c.MaxClients < 1 || c.MaxDatasets < 1 || c.MaxEpochs < 1 {
		err = multierr.Append(err, fmt.Errorf("--max-jobs %d, --max-clients %d, --max-datasets %d, --max-epochs %d: each must be at least 1", c.MaxJobs, c.MaxClients, c.MaxDatasets, c.MaxEpochs))
	}
	if c.MaxCrashes < 1 || c.MaxDeaths < c.MaxCrashes || c.MaxFailures < 1 {
		err = multierr.Append(err, fmt.Errorf("at most %d crashes, %d deaths and %d failures of a stream: each must be at least 1, and deaths no fewer than crashes", c.MaxCrashes, c.MaxDeaths, c.MaxFailures))
	}
	return err
}
