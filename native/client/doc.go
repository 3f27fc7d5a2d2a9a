// Package client is the trainer's side of Pecan. It asks a dispatcher for jobs and epochs, and reads elements from workers.
//
// A Session connects a process to one dispatcher. A Job is one consumption of a dataset, and a RejoiningJob replaces its job when the
// dispatcher has lost it. An Iteration is one pass of an iterator over a job. Next returns elements in counted buffers and never blocks
// longer than its wait argument.
//
//	session, heartbeat             one process, its jobs, and how the dispatcher knows that they are alive
//	job, membership, passes        one consumer of a job: registration, loss, numbering and prefetching of epochs
//	iteration, next, iteration_epochs, cardinality   what an iterator of the training loop reads
//	rejoin, rejoin_iteration       a new job in the place of one that the dispatcher lost
//	save_load                      where a resume token is saved and loaded
//
// Packages below, each importing only those to its right:
//
//	client → resume → epoch → transport, control → element, wait
//
// resume knows positions and tokens, epoch reads the streams of one epoch, transport holds connections to workers, control holds the
// connection to the dispatcher, element holds the memory of elements, wait has backoff and clocks. None of them uses cgo.
//
// Locks are taken in this order: RejoiningIteration.mu, RejoiningJob.mu, Iteration.mu, the resume log's, Job.mu, an epoch's, a
// connection's. Session.mu is taken alone or before the link's lock, which may be taken under any. Nothing blocks while it holds the lock of an
// epoch or a connection.
package client
