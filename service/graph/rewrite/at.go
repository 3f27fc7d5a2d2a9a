package rewrite

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// At selects a stream of an epoch, and sets how the worker runs it.
type At struct {
	// Stream is 0..S-1, or S and above for closing streams. With sharding off it is any number: every stream is the
	// whole dataset.
	Stream int
	Epoch  uint64
	// Seed is the job's seed.
	Seed uint64
	Mode pecanv1.Mode
	// Start is the index at which the stream begins. Earlier elements are skipped as close to the source as
	// possible.
	Start uint64
	// Restored is the index at which an iterator continues from a checkpoint. A checkpoint has no state of
	// random ops. They draw other values than for the first elements, because Restored changes their seeds.
	Restored uint64
	// Source is the handle that PecanPull passes to the worker's source; -1 without one.
	Source int64
	// In the closing stream of a group, A pulls remainders under the handle Source. Relay is then the handle of the source
	// that has the elements of graph A.
	Relay int64
	// Cached, if not nil, is a step at which the graph is divided: StreamGraphs.UpstreamOfCache has the step and all steps
	// upstream. The other graph pulls their elements under the handle CacheSource.
	Cached      *pecanv1.CachePlan
	CacheSource int64
	// Part, if not nil, is a part of the source. Only UpstreamOfCache is then written, for the elements of that part.
	Part *uint32
	// Files has the states of those strings of TableFiles that name files, and Job is the id of the job. Streams share a table only
	// if both are equal, or if Files has the versions of all files of the table.
	Files map[string]FileState
	Job   string
	// Threads, if positive, is the size of the stream's private thread pool, unless the user set one.
	Threads int
	// RAMBudget, if positive, bounds the bytes that tf.data's autotuning may use for buffers.
	RAMBudget int64
	// Serial makes every step compute one element at a time, when it is requested. In a context with one thread for
	// functions, only the requesting thread and that thread spend CPU on an element, and only during the request.
	Serial bool
	// Keyed makes the stream run as in mode deterministic, with keyed randomness in all steps that support it.
	Keyed bool
	// LastStep, if not empty, is the last step of the stream. Steps downstream of it are left out.
	LastStep string
	// Meters, if not empty, is the name of a resource in which meters count the steps that tf.data's model of a
	// running iterator forgets. No other iterator of the process may have the same name.
	Meters string
}

// FileState is how a file looks now. It is a version if no other content of the file can look so.
type FileState struct {
	State   string
	Version bool
}

// StreamGraphs are the graphs that a worker runs for one stream: A alone, or A and B, which reads A's elements
// through PecanPull. In a stream that is divided at a cached step, A reads the elements of UpstreamOfCache from the
// worker.
type StreamGraphs struct {
	A               []byte
	B               []byte
	UpstreamOfCache []byte
	// Batches, if not nil, is the graph whose elements UpstreamOfCache reads through PecanPull, under the handle Source.
	// The stream keeps back its last element for the closing stream if it is short. There is no B then.
	Batches []byte
	// Parts are the parts of the source that the stream has at the cached step, in order. If the step is stored by parts
	// of the source, UpstreamOfCache is nil: set At.Part to write the graph of one part.
	Parts []uint32
	// StoredTypes are the dtypes of an element at the cached step.
	StoredTypes []tf.DataType
	// FileNames returns the strings in UpstreamOfCache of a part that may be names of files. With At.Part, Parts,
	// StoredTypes and FileNames are empty.
	FileNames func(part uint32) []string
	// Files are At.Files.
	Files map[string]FileState
	// Shared are the tables and variables in the graphs that streams share by their names. The graphs' datasets
	// create them, and the graph of ReleaseGraph frees them.
	Shared []Shared
	// Nodes describes the dataset nodes of the registered graph.
	Nodes Nodes
	// Output is the name of the _Retval node that marks the dataset in A and B.
	Output string
}

// Nodes describes the dataset nodes of a registered graph for the metrics of a stream.
type Nodes struct {
	// Ops are their ops, by name. A stream may run a step with another op.
	Ops map[string]string
	// Passed are the steps that the stream's graphs leave out, with the node whose elements each of them returns.
	Passed map[string]string
}
