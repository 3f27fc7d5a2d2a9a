// Package cachefill writes and reads the cache segments of a stream at a cached step (docs/formats/cache.md).
//
// A Source is the tf.data source of the graph downstream of a cached step. It yields one part of the stream's share
// after another. It reads the segment of a part if there is one. Otherwise it runs the upstream graph over the part and
// writes a segment. If a file fails, it still yields the elements of the upstream graph, each once. A Directory is the
// worker's side of all caches: segments that are written, acknowledged by the dispatcher, or removed because no cache
// needs them.
//
// source.go has the Source. pull.go yields its elements, and lets the op fetch those of the upstream graph. end.go ends a part and completes its segment. early.go opens the next segment. upstream.go
// fetches the elements of the upstream graph and packs small ones. digest.go names the files that elements come from.
// reports.go reports finished and invalid segments. directory.go has the Directory. rates.go measures the directory's
// speed. probe.go measures the speed before the first segment. follow.go asks the dispatcher whether another worker writes
// a part.
//
// Do not decide here which parts are cached: the dispatcher's journal says it, and a segment that it does not record is
// never read.
//
// TensorFlow calls Source.Pull from threads of its own, one at a time. In a simulation these threads must not send messages:
// Report sends them from the run's goroutine, and no stream asks for parts. A Source's lock is taken before the Directory's.
package cachefill
