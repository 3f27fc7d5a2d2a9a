// Package pecanv1 has the messages that Pecan's processes exchange and that the dispatcher stores.
//
// The .pb.go files are generated from the .proto files by `make generate`:
//
//   - types.proto: datasets, streams, addresses of workers and errors, which most of the others use;
//   - options.proto: what a trainer asks of a job;
//   - plan.proto: how a dataset is divided into streams;
//   - orders.proto, placements.proto, caching.proto: what is measured and decided about the order of steps, workers and caches;
//   - positions.proto: positions, resume tokens and checkpoints;
//   - dispatcher.proto: the service Dispatcher and the calls of trainers;
//   - worker_reports.proto, worker_commands.proto: what a worker sends, and what it is sent;
//   - status.proto: what operators see;
//   - caches.proto: what operators see of caches, and change;
//   - records.proto: the journal's Record; stream_records.proto, cache_records.proto and decision_records.proto have more of its kinds;
//   - snapshot.proto: the state to which the records add up;
//   - learned.proto: what was learned from jobs about graphs;
//   - data.proto: messages in the frames of the data plane.
//
// Do not change the meaning of a field number, because old journals stay readable. methods.go, nodes.go, order.go,
// cached_order.go, learned.go, streams.go, loads.go and tenant.go have the few methods that more than one package
// needs. Do not add policies or I/O here: they belong in policies/ and in the services. The package has more files and
// lines than others, because it is one protobuf package. Records contain the messages of calls, and calls return parts of
// records, so two packages would import each other.
package pecanv1
