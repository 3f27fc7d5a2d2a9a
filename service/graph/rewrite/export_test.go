package rewrite

// Names that the tests compare graphs with.
const (
	CycleLength     = cycleLength
	PrefetchOp      = prefetchOp
	ParallelBatchOp = parallelBatchOp
)

// Wakes are the ops that become expensive if a resource of meters is downstream of them.
var Wakes = wakesPerElement

// WorksAhead returns whether an op computes elements before they are requested, or several at once.
func WorksAhead(op string) bool { return prefetches(op) }
