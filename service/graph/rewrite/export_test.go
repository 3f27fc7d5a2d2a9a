package rewrite

// What the tests compare graphs with.
const (
	AnonymousVariable = anonymousVariable
	CycleLength       = cycleLength
	PrefetchOp        = prefetchOp
	ParallelBatchOp   = parallelBatchOp
)

// Wakes are the ops that pay for a resource of meters above them.
var Wakes = wakesPerElement

// WorksAhead tells whether an op computes elements before they are requested, or several at once.
func WorksAhead(op string) bool { return prefetches(op) }
