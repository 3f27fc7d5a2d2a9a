// Package dispatcher connects the core with its environment: gRPC, a store, a clock and randomness.
//
// Package validate checks the form of every request (names, limits, enums); the core checks whether it makes sense. One
// mutex guards the core. Each decision joins a queue until its records are on disk. One goroutine writes the queue, many
// decisions at a time, and then releases replies and effects in the order of decisions. So a crash loses no
// announced decision. When the store fails, the dispatcher stops.
//
// Files in the order of a request: server.go and connections.go (gRPC), rpc_*.go (one file per subject), dispatcher.go
// (submit, decide), commit.go (write, release, perform effects), outgoing.go (commands and updates on their way).
// learned.go exchanges with other dispatchers what jobs have taught.
// disk_full.go stops time while the disk is full. upload.go receives graphs, graphs.go divides them, order_plans.go plans
// orders for the core. Package metrics exports counters, package ordering proposes orders.
//
// Nothing here decides about jobs, leases or streams: that is the core's.
package dispatcher
