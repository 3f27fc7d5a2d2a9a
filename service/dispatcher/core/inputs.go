package core

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// SessionID names one connection of a worker, WatchID one watch of a client. The caller never uses a number
// twice.
type (
	SessionID uint64
	WatchID   uint64
)

// Effect is an action of the caller after the records of the same Result are durable.
type Effect any

type (
	// Command goes to a worker.
	Command struct {
		Session SessionID
		Message *pecanv1.WorkerCommand
	}
	// EndSession ends a worker's connection with Err.
	EndSession struct {
		Session SessionID
		Err     *reason.Error
	}
	// Update is what a client must learn of its pass: first a full update, then differences. The caller may merge those that
	// wait.
	Update struct {
		Watch   WatchID
		Message *pecanv1.EpochUpdate
		// Open counts the streams that the client has and has not reported as received.
		Open int
	}
	// EndWatch ends a watch; a nil Err is a normal end.
	EndWatch struct {
		Watch WatchID
		Err   *reason.Error
	}
	// RemoveGraph deletes a graph that no dataset has any more.
	RemoveGraph struct{ Fingerprint string }
	// SaveLearned asks the caller to write what was newly learned about a graph to the learned directory, if there is one.
	SaveLearned struct{ Fingerprint string }
	// CachingRequest asks which step of a job is cached, and what caches save. The answer is CachingDecided.
	CachingRequest struct {
		Number uint64
		JobID  string
		Facts  measure.Caching
	}
	// WorkerLeft reports the planned departure of a worker, after its goodbye.
	WorkerLeft struct {
		Worker, Tcp string
		// Asked is set if the dispatcher asked for it.
		Asked bool
		// AtIndex is the time until the streams had left that can begin at any index. Without such a stream it is 0, and
		// HadAtIndex is false. All is the time until the goodbye.
		AtIndex, All time.Duration
		HadAtIndex   bool
	}
	// Event is a change of state for the log.
	Event struct {
		Text string
		Args []any
		Warn bool
	}
)

// Result is the result of a decision.
type Result struct {
	// Records are applied already. The caller makes them durable.
	Records []*pecanv1.Record
	Effects []Effect
	// Reply answers a request; its type is in the comment of the input. It is nil if Err is set.
	Reply any
	Err   error
}

// These inputs of Decide are not requests of the Dispatcher service. The requests are OpenEpoch,
// AdoptEpoch, FinishStreams, ReleaseStreams, ReportWorker, MarkElements, ReportCrash, CloseEpoch, ClientHeartbeat,
// ClientGoodbye and MergeLearned; their replies are their responses.
type (
	// Start is the first input: this process has opened the store.
	Start struct {
		// ClusterID names the cluster if the store is new.
		ClusterID string
		// UnixS is the time of day, in seconds since 1970.
		UnixS int64
	}
	// AddDataset registers a dataset whose graph is stored already. Reply: *pecanv1.RegisterDatasetResponse.
	AddDataset struct {
		// WantedID may be empty. The core then tries DerivedIDs in order.
		WantedID    string
		DerivedIDs  []string
		Fingerprint string
		Spec        *pecanv1.DatasetSpec
		GraphBytes  int64
		// Learned is what other dispatchers have kept of the graph; nil without any. durable.CheckLearned accepts it.
		Learned *pecanv1.Learned
	}
	// CreateJob finds or creates a job. Reply: *pecanv1.CreateJobResponse, or PlanNeeded.
	CreateJob struct {
		Request *pecanv1.CreateJobRequest
		// JobID and Seed are random numbers of the caller. A new job uses them.
		JobID string
		Seed  uint64
		// Plan is nil in the first attempt.
		Plan *pecanv1.Plan
	}
	// OrderRefused says that the steps of a job may not run in its decided order: another version, or another dispatcher,
	// decided on it.
	OrderRefused struct{ JobID, Why string }
	// OpenEpochAt is an OpenEpochRequest with the order of its position, see OrderToFind. Reply:
	// *pecanv1.OpenEpochResponse.
	OpenEpochAt struct {
		Request *pecanv1.OpenEpochRequest
		// Order names all steps; empty if no order was needed or found.
		Order []string
	}
	// PlanNeeded replies to a CreateJob that would create a job and has no plan. Nothing changed; the caller asks
	// again with a plan.
	PlanNeeded struct {
		Dataset *pecanv1.StoredDataset
		// Profile has the costs of the steps that an earlier job with this dataset measured.
		Profile []*pecanv1.NodeMetrics
		// Caches has the number of streams of each complete cache by its key.
		Caches map[string]int
	}
	// Watch starts pushing Updates for a pass.
	Watch struct {
		ID      WatchID
		Request *pecanv1.WatchEpochRequest
	}
	// Unwatch ends a watch.
	Unwatch struct{ ID WatchID }
	// Hello is a worker's first message on a new session. An error ends the session.
	Hello struct {
		Session SessionID
		Message *pecanv1.WorkerHello
	}
	// FromWorker is any later message of a worker.
	FromWorker struct {
		Session SessionID
		Message *pecanv1.WorkerMessage
	}
	// SessionEnded reports that a worker's connection has ended.
	SessionEnded struct{ Session SessionID }
	// CachingDecided answers the CachingRequest with the same number. The decision is nil if none was possible, and WaitsFor says
	// what is missing.
	CachingDecided struct {
		Number   uint64
		JobID    string
		Decision *pecanv1.CacheDecision
		WaitsFor string
	}
	// Tick lets time pass. It must come a few times per second.
	Tick struct{}
)
