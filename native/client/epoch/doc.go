// Package epoch reads the streams of one epoch, from the dispatcher's updates to elements that are ready.
//
// An Epoch (epoch.go) is opened at the dispatcher (open.go) and watches its updates (update.go), which name the worker of
// each stream. streams.go has the set of streams, and visits only open streams. stream.go has one stream, and reports its
// end. update.go also keeps a channel open for each stream that can be read, and stream_failure.go decides what follows
// when a channel fails. receiver.go accepts entries, and credit.go grants workers the bytes that they may send: steadily,
// or in rotation where many streams share the budget. dequeue.go returns elements to the consumer. outage.go decides when a
// wait becomes an error. report.go and position.go report what was dequeued and received. progress.go has the form of a
// position in plans with groups. carry.go has the rows that the next epoch joins. prefetch.go decides when to open the next
// epoch. consumer.go has the state that all epochs of a job share, and Job, the interface of an epoch to its job.
// outdated_lease.go, received_elements.go and released_at.go are guards that tests/sim removes with build tags.
//
// An epoch accepts only the next index of each stream, under the newest lease. That rule holds under every fault. The epoch
// drops and counts other elements, and requests the stream again from the next index. Therefore the next indexes of all
// streams are the whole position.
//
// Epoch.mu guards the epoch and all its streams. It is taken before the locks of transport and after those of package
// client. Do not block under it. The package has more than 15 files because all of them use an epoch and its streams under
// this lock. Six of them are the guards, which need a file for each build tag.
package epoch
