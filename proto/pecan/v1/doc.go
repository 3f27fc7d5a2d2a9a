// Package pecanv1 has the messages that Pecan's processes exchange and that the dispatcher stores.
//
// The .pb.go files are generated from the .proto files by `make generate`:
//
//   - types.proto: messages that several of the others use (plan, options, position, errors);
//   - dispatcher.proto: the service Dispatcher and the calls of trainers;
//   - worker.proto: reports of workers and commands to them;
//   - status.proto: what operators see;
//   - caches.proto: what operators see of caches, and change;
//   - records.proto: the records of the journal and the snapshot;
//   - data.proto: messages in the frames of the data plane.
//
// Field numbers never change their meaning, so that old journals stay readable. methods.go, nodes.go, order.go,
// cached_order.go, learned.go, streams.go, loads.go and tenant.go have the few methods that more than one package
// needs. Nothing else belongs here: no policy, no I/O. The package has more lines than others, because messages of all
// files refer to each other.
package pecanv1
