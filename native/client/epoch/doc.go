// Package epoch reads the streams of one epoch, from the dispatcher's snapshots to rows that are ready.
//
// An Epoch is opened at the dispatcher (open.go) and watches its snapshots (snapshot.go), which name the worker of each stream.
// streams.go has the set of streams, of which only open ones are visited. reconcile.go keeps a channel open for each stream that can be
// read, receiver.go accepts chunks, credit.go grants workers the bytes that they may send: steadily, or in rotation where many streams share
// the budget. dequeue.go and turn.go return rows to the consumer. outage.go decides when a wait becomes an error. report.go, reports.go and
// position.go report what was dequeued and received (progress.go has the form of a position in plans with groups; carry.go
// the rows that batches go on with in the next epoch), prefetch.go decides
// when to open the next epoch. Consumer has the state that all epochs of a job share, and Job is the interface of an epoch to its job.
//
// Under any fault an epoch accepts of each stream only the next index, under the newest lease. It drops and counts other elements, and
// requests the stream again from the next index. Therefore the next indexes of all streams are the whole position.
//
// Epoch.mu guards the epoch and all its streams. It is taken before the locks of transport and after those of package client. Nothing
// blocks under it. The package has more files than others because each guard that tests/sim removes needs a file per build tag.
package epoch
