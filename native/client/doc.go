// Package client is the trainer's side of Pecan: it asks a dispatcher for jobs and epochs and reads elements from
// workers, over TCP or, on one host, through shared memory.
//
// A Session is a process's link to one dispatcher. A Job is one consumption of a dataset. An Iteration is one pass of
// an iterator over it; Next hands out elements that lie in counted buffers and never blocks longer than it is told.
//
//	session ── heartbeats, queued reports, one conn per worker
//	  └ job ── passes, the epoch that is opened ahead
//	      └ iteration ── takes elements from its current epoch
//	          └ epoch ── follows the dispatcher's snapshots: which stream is read where
//	              └ stream ── next index, queue of frames, channel on a conn
//
// What holds whatever fails: of each stream exactly the next index is accepted, under the newest lease; anything else
// is dropped and counted, and the stream is asked for again from the next index. So the position, the next index of
// each stream, is all the state there is.
//
// Locks are taken in this order: Iteration.mu, Job.mu, epoch.mu, conn.mu. Nothing blocks while it holds one of the
// last two.
package client
