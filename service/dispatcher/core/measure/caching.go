package measure

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Caching has the measurements of a job for the decision which step is cached.
type Caching struct {
	Plan    *pecanv1.Plan
	Options *pecanv1.JobOptions
	// Nodes has the metrics of streams that run all steps in the registered order. Elements is the number of elements that
	// trainers get in an epoch; 0: not known.
	Nodes    []*pecanv1.NodeMetrics
	Elements uint64
	// CPUWait is the share of the time of Nodes in which threads waited for a core.
	CPUWait float64
	// Source has how workers read the source together.
	Source []SourceUse
	// Trainers are those that have read in the last seconds.
	Trainers []Trainer
	// Workers are those that may serve the job. Remote and Local are how many of each kind it may have.
	Workers []StoreUser
	// Reads and Writes are the fastest uses of the store by several workers.
	Reads, Writes []StoreUse
	Remote, Local int
	// Steps are the candidates that can be cached, from the source on.
	Steps []CachedStep
	// Epochs are those that were measured in the registered order of the steps, in the job with the id JobID or in earlier ones.
	Epochs []*pecanv1.MeasuredEpoch
	JobID  string
	// Tries has how many epochs began as tries of a node; empty for those that compute. Tried is set if Current is such a try.
	Tries map[string]int
	Tried bool
	// Quota is how many bytes the quotas leave to caches of the job; negative: no bound.
	Quota int64
	// Begun is the number of epochs that trainers of the job have begun to read. Past are the other jobs with the same
	// graph, and UnixS is the time.
	Begun uint64
	Past  []*pecanv1.PastJob
	UnixS int64
	// KeptHours is for how long an unused cache is kept; 0: forever.
	KeptHours float64
	// Ordered is the order that was decided for the steps; nil without one.
	Ordered *Ordered
	// Current is the node of the step that is cached by the newest decision; empty if none is.
	Current string
}

// Predicted is how many workers a decision on a cache expects to need. Stage changes with what the epochs do with the cache; it is
// empty without a decision.
type Predicted struct {
	Stage         string
	Remote, Local int
}

// Ordered is a decided order of the steps of a job.
type Ordered struct {
	// Decided has the order, the steps that it moves, and what they cost.
	Decided *pecanv1.StoredOrder
	// InForce is set if what is cached by the newest decision has this order too.
	InForce bool
	// Steps are the candidates, with what is stored of them in this order.
	Steps []CachedStep
}

// KeepEpochs returns the newest epochs of each node.
func KeepEpochs(epochs []*pecanv1.MeasuredEpoch, newest int) (kept []*pecanv1.MeasuredEpoch) {
	have := map[string]int{}
	for _, e := range slices.Backward(epochs) {
		if have[e.Node]++; have[e.Node] <= newest {
			kept = append(kept, e)
		}
	}
	slices.Reverse(kept)
	return kept
}

// CachedStep is a step whose elements may be cached.
type CachedStep struct {
	Candidate *pecanv1.CacheCandidate
	// Problem is why it cannot be cached now; empty if it can.
	Problem string
	// Stored is the share of its elements that the store has. Bytes is the size of that share, and Held is its number of
	// elements.
	Stored      float64
	Bytes, Held uint64
	// Past are the other jobs that could read its cache.
	Past []*pecanv1.PastJob
}

// StoreUser is a worker with a directory of caches, or without one.
type StoreUser struct {
	Local bool
	Cores int
	// Rates is nil before the worker has reported them.
	Rates *pecanv1.StoreRates
}
