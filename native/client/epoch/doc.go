// Package epoch reads the streams of one epoch, from the dispatcher's snapshots to rows that are ready.
//
// An Epoch is opened at the dispatcher (open.go) and watches its snapshots (snapshot.go), which name the worker of each stream.
// reconcile.go keeps a channel open for each stream that can be read, receiver.go accepts chunks, credit.go grants workers the bytes that
// they may send, dequeue.go and turn.go return rows to the consumer. outage.go decides when a wait becomes an error. report.go and
// position.go report the dequeued elements, prefetch.go decides when to open the next epoch. Consumer has the state that all epochs of a
// job share, and Job is the interface of an epoch to its job.
//
// Under any fault an epoch accepts of each stream only the next index, under the newest lease. It drops and counts other elements, and
// requests the stream again from the next index. Therefore the next indexes of all streams are the whole position.
//
// Epoch.mu guards the epoch and all its streams. It is taken before the locks of transport and after those of package client. Nothing
// blocks under it. The package has more files than others because each guard that tests/sim removes needs a file per build tag.
package epoch
