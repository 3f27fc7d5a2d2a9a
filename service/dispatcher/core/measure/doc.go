// Package measure keeps what trainers and workers reported over the last seconds: sub-windows of what trainers took, and
// running totals of workers. It answers how fast they were in a given time.
//
// Times are from the dispatcher's clock. Each sub-window carries its age. The package subtracts the age from the
// dispatcher's time to order the sub-windows. The rates of a worker follow from the worker's clock, so that a delayed
// heartbeat does not change them.
//
// consumer.go has the sub-windows of one trainer, and worker.go has the totals of one worker. source.go and store.go have how
// workers read the source of a job together, and how they use the store of caches together. interval.go has the time over
// which they are measured. window.go has the measurement window of a job. caching.go has what a decision on its cache needs.
//
// The package is pure. It must not know jobs, leases or policies.
package measure
