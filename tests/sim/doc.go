// Package sim runs the real dispatcher, workers and client libraries in one process, over a network and a disk in memory and on a fake clock,
// and lets anything die or stall at any moment. Workers run real TensorFlow.
//
// Each run lives in a bubble of testing/synctest: its clock moves only when every goroutine of the cluster waits for something in the
// bubble, so ten minutes of an outage cost nothing, and a goroutine that is left at the end fails the test. What calls TensorFlow waits
// outside of the bubble, and the clock stands still until it is back. The dispatcher's store runs outside for the same reason
// (disk_test.go).
//
// A seed decides the cluster, the dataset, what breaks, when and for how long, latencies, what a crash leaves on the disk, and the dispatcher's
// ids. It does not decide the order in which Go and TensorFlow run goroutines and threads that are ready at the same moment, nor the
// jitter of pauses between retries and the ids of clients and workers: a seed that failed may have to be run some times until it fails again.
//
// Not here: plans with a closing stream. TensorFlow calls the source of their graphs from threads of its own, which are in no bubble, and
// Go ends a process that touches a bubble's channels from outside. Tests with real processes have them.
package sim
