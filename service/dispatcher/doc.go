// Package dispatcher connects the core with its environment: gRPC, a store, a clock and randomness.
//
// Package validate checks the form of every request (names, limits, enums); the core checks whether it makes sense. One
// mutex guards the core. Each decision joins a queue until its records are on disk. One goroutine writes the queue, many
// decisions at a time, and then releases replies and effects in the order of decisions. So a crash loses no announced
// decision. When the store fails, the dispatcher stops.
//
// These files are in the order of a request. config.go has the settings and what the caller provides. server.go and
// connections.go are for gRPC. rpc_*.go have one subject each: datasets, jobs, epochs, streams, explain, status, caches,
// the worker's session. dispatcher.go submits and decides. commit.go writes records, releases replies, and performs
// effects. outgoing.go sends commands, and updates.go sends updates.
//
// These files do what the core asks for, outside of its mutex. upload.go receives graphs, and graphs.go checks and plans
// them. order_plans.go plans orders, placements.go places jobs on workers, and cachings.go chooses caches. background.go
// runs this work. providing.go calls the provider of workers. learned.go exchanges learned profiles, orders and placements
// with other dispatchers. disk_full.go stops time while the disk is full. metrics_source.go gives package metrics the
// values to export.
//
// The package has more than 15 files because all calls and all background work submit inputs to one core. They share its
// mutex, the queue of decisions that wait for the disk, and the open sessions and watches. A part of its own would need all
// three.
//
// Do not decide about jobs, leases or streams here: the core decides.
package dispatcher
