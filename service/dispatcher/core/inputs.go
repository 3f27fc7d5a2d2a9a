package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// SessionID names one connection of a worker, WatchID one watch of a client; the caller gives both out and never again.
type (
	SessionID uint64
	WatchID   uint64
)

// Effect is something the caller does once the records of the same Result are durable.
type Effect any

type (
	// Command goes to a worker.
	Command struct {
		Session SessionID
		Message *pecanv1.WorkerCommand
	}
	// EndSession breaks a worker's connection; Err is told to it.
	EndSession struct {
		Session SessionID
		Err     *reason.Error
	}
	// Update is the newest snapshot for a watch; a caller that is behind drops older ones.
	Update struct {
		Watch   WatchID
		Message *pecanv1.EpochUpdate
	}
	// EndWatch ends a watch; a nil Err means that it is over as it should be.
	EndWatch struct {
		Watch WatchID
		Err   *reason.Error
	}
	// RemoveGraph deletes a graph that no dataset has any more.
	RemoveGraph struct{ Fingerprint string }
	// Event is a change of state in words for the log.
	Event struct {
		Text string
		Args []any
		Warn bool
	}
)

// Result of a decision.
type Result struct {
	// Records are applied already and have to be made durable.
	Records []*pecanv1.Record
	Effects []Effect
	// Reply is the answer to a request, of the type that the input's doc says. Nil when Err is set.
	Reply any
	Err   error
}

// Inputs of Decide, beside the requests of the Dispatcher service themselves (OpenEpoch, AdoptEpoch, FinishStream,
// ReleaseStream, ReportWorker, MarkElements, ReportCrash, CloseEpoch, ClientHeartbeat, ClientGoodbye), whose replies are their responses.
type (
	// Start is the first input: this process has the store.
	Start struct {
		// ClusterID names the cluster when the store is new.
		ClusterID string
	}
	// AddDataset registers a dataset whose graph is stored already. Reply: *pecanv1.RegisterDatasetResponse.
	AddDataset struct {
		// WantedID may be empty; then DerivedIDs are tried in order.
		WantedID    string
		DerivedIDs  []string
		Fingerprint string
		Spec        *pecanv1.DatasetSpec
		GraphBytes  int64
	}
	// CreateJob finds or creates a job. Reply: *pecanv1.CreateJobResponse, or PlanNeeded.
	CreateJob struct {
		Request *pecanv1.CreateJobRequest
		// JobID and Seed are drawn by the caller, for the case that a job is created.
		JobID string
		Seed  uint64
		// Plan is nil at first.
		Plan *pecanv1.Plan
	}
	// OpenEpochAt is an OpenEpochRequest whose position's order was found by the caller, see OrderToFind. Reply: as to that.
	OpenEpochAt struct {
		Request *pecanv1.OpenEpochRequest
		// Order has the names of all steps; none: it was not to be found.
		Order []string
	}
	// PlanNeeded is the reply to a CreateJob without a plan when it would create a job: nothing was changed, ask again with one.
	PlanNeeded struct{ Dataset *pecanv1.StoredDataset }
	// Watch starts pushing Updates for a pass.
	Watch struct {
		ID      WatchID
		Request *pecanv1.WatchEpochRequest
	}
	// Unwatch ends it.
	Unwatch struct{ ID WatchID }
	// Hello is a worker's first message on a new session. Errors end the session.
	Hello struct {
		Session SessionID
		Message *pecanv1.WorkerHello
	}
	// FromWorker is any other message of a worker.
	FromWorker struct {
		Session SessionID
		Message *pecanv1.WorkerMessage
	}
	// SessionEnded tells that a worker's connection is gone.
	SessionEnded struct{ Session SessionID }
	// Tick lets time pass. It has to come a few times per second.
	Tick struct{}
)
