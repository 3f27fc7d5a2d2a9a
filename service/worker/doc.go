// Package worker is the program pecan-worker: it assembles a worker from its parts and holds the session with the
// dispatcher.
//
// The parts are packages below this one. identity says who the worker is. dataset fetches and parses graphs. run runs
// streams: one goroutine per run fetches elements from TensorFlow and appends them to the stream's window. window keeps
// the ready elements until the reader acknowledges them. payload lays elements out for the wire. serve is the data plane:
// it takes elements from windows and sends them to readers (docs/formats/frame.md). cachefill writes and reads the segments
// of cached steps. checkpoint stores the state of iterators. trial compares two orders of a dataset's steps. profile counts
// what each step did. The parts do not import this package.
//
// worker.go starts and closes the parts. config.go has the configuration. session.go keeps the session, and handshake.go
// opens it. heartbeat.go makes the heartbeats. stream_lists.go starts, stops and reports many streams at once.
// lease_expiry.go says when leases are over. drain.go prepares a planned departure. fetch.go reads graphs from the
// dispatcher. crashreport.go reports a crash. collector.go exports metrics to Prometheus.
//
// Locks are taken in this order: a stream, its window, a connection. No lock is held while a message is sent to the
// dispatcher: session.Send only queues it.
//
// Crash behaviour: the worker needs nothing on its own disk. If it dies, the dispatcher leases its streams to other
// workers. They run each stream again, from its start, its index or a checkpoint, and skip what the reader has. If the
// dispatcher is away, the worker serves until the lease time is over. Then it stops its streams, because they may run
// elsewhere by then.
//
// Do not give a part the session: it gets a function that queues messages. Do not run streams or write frames here.
package worker
