// Package measure keeps what trainers and workers reported over the last seconds: sub-windows of what trainers took, and
// running totals of workers. It answers how fast they were in a given time.
//
// Times are those of the dispatcher's clock. A sub-window says how old it is, and so gets its place on that clock. The
// rates of a worker follow from its own clock, so that a delayed heartbeat does not change them.
//
// Files: consumer.go holds the sub-windows of one trainer, worker.go the totals of one worker. window.go has the
// measurement window of a job, caching.go what a decision on its cache needs.
//
// The package is pure. It knows no jobs, leases or policies.
package measure
