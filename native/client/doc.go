// Package client is the trainer's side of Pecan. It asks a dispatcher for jobs and epochs, and reads elements from
// workers.
//
// A Session connects a process to one dispatcher. A Job is one consumption of a dataset, and a RejoiningJob replaces
// its job when the dispatcher has lost it. An Iteration is what one iterator reads of a job. Next returns elements in
// reference-counted buffers and never blocks longer than its wait argument.
//
//	session.go, heartbeat.go              one process, its jobs, and how the dispatcher knows that they are alive
//	job.go, membership.go, passes.go      one consumer of a job: registration, loss, numbering and prefetching of epochs
//	iteration.go, next.go,                what an iterator of the training loop reads
//	iteration_epochs.go, cardinality.go
//	rejoin.go, rejoin_iteration.go        a new job in the place of one that the dispatcher lost
//	save_load.go                          saving and loading resume tokens
//	local_workers.go, placement.go        how many workers the dispatcher wants, and what the trainer's log says of it
//	config.go, options.go                 settings of a session and of an iteration
//
// The package has more than 15 files because a session, a job and an iteration call each other and share the order of
// locks below.
//
// Packages below, each importing only those to its right:
//
//	client → resume → epoch → transport, control → element, wait
//	client → pace
//
// resume has positions and tokens. epoch reads the streams of one epoch. transport holds connections to workers, and
// control holds the connection to the dispatcher. element holds the memory of elements. wait has backoff and clocks. pace
// measures how fast the trainer takes elements.
//
// Locks are taken in this order: RejoiningIteration.mu, RejoiningJob.mu, Iteration.mu, the resume log's, Job.mu, an
// epoch's, a connection's. Session.mu is taken alone or before the link's lock. The link's lock may be taken under any
// other lock. Do not block while you hold the lock of an epoch or a connection.
//
// Do not use cgo or TensorFlow here or in the packages below: native/op hands elements to TensorFlow.
package client
