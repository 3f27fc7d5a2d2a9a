// Package epoch reads the streams of one epoch, from the dispatcher's snapshots to rows that are ready.
//
// An Epoch is opened at the dispatcher (open.go) and watches its snapshots (snapshot.go), which say which worker has which stream.
// reconcile.go keeps a channel open for each stream that can be read, receiver.go accepts chunks, credit.go grants workers the bytes that
// they may send, dequeue.go and turn.go hand rows to the consumer. outage.go decides when a wait becomes an error, report.go and position.go
// say what was dequeued, prefetch.go when the next epoch is to be opened. Consumer holds what all epochs of a job share, and Job is
// what an epoch asks of its job.
//
// Whatever fails: of each stream exactly the next index is accepted, under the newest lease. Anything else is dropped and counted, and
// the stream is requested again from the next index. The next index of each stream is therefore the whole position.
//
// Epoch.mu guards the epoch and all its streams. It is taken before the locks of transport and after those of package client. Nothing
// blocks under it. The package has four files more than the rest because guards of tests/sim need a file for each build tag.
package epoch
