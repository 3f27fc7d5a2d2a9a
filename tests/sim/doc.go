// Package sim runs the real dispatcher, workers and client libraries in one process. Network and disk are in memory, and the
// clock is a fake. Anything may die or stall at any moment. Workers run real TensorFlow.
//
// Each run has its own bubble of testing/synctest. The bubble's clock moves only when every goroutine of the cluster waits
// for something in the bubble. So ten minutes of an outage cost nothing, and a leaked goroutine fails the test. Calls of
// TensorFlow wait outside the bubble, and the clock stands still until they return. The dispatcher's store runs outside
// for the same reason (disk_test.go).
//
// A seed decides the cluster, the dataset, latencies, the dispatcher's ids and what a crash leaves on the disk. It also
// decides what breaks, when and for how long. It does not decide in which order Go and TensorFlow run goroutines and threads
// that are ready at the same moment. It does not decide the jitter between retries, or the ids of clients and workers,
// either. A failed seed may need several runs until it fails again.
//
// Half of the seeds ask for 1 to 1,024 streams (anyStreams in random_test.go has the limits), and the others have 4.
//
// In half of the seeds with a cached step, decisions say which step is cached. They are random and change with each epoch, because
// no decision may change an element (caching_test.go).
//
// Plans with a closing stream are not here. TensorFlow calls the source of their graphs from its own threads, which are in
// no bubble. Go ends a process that touches a bubble's channels from outside. Tests with real processes have them.
package sim
