package rewrite

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// At says which stream of which epoch is wanted, and how the worker runs it.
type At struct {
	// Stream is 0..S-1, or S for the closing stream. With sharding off any number: every stream is the whole dataset.
	Stream int
	Epoch  uint64
	// Seed is the job's seed.
	Seed uint64
	Mode pecanv1.Mode
	// Start is the index at which the stream begins. Elements before it are left out as low in the graph as can be.
	Start uint64
	// Restored is the index at which an iterator over the graph goes on with a checkpoint's state. Random ops, whose state
	// is in none, then draw other values than they drew for the first elements.
	Restored uint64
	// Source is the handle that PecanPull passes to the worker's source op, -1 when there is none.
	Source int64
	// SplitAtCache divides the graph at the plan's cached step: what lies below is StreamGraphs.Below, and CacheSource is the handle under
	// which the rest pulls its elements.
	SplitAtCache bool
	CacheSource  int64
	// Files are the states of those of Graph.TableFiles that are files, and Job is the id of the job: tables are shared by them.
	Files map[string]string
	Job   string
	// Threads, when positive, gives the stream a thread pool of its own of that size unless the user chose one.
	Threads int
	// RAMBudget, when positive, bounds what tf.data's autotuning may use for buffers, bytes.
	RAMBudget int64
	// Serial has every step make one element after another, when it is asked for. In a context with one thread for functions the CPU that
	// an element takes is then spent while it is asked for, by the thread that asks and by that one.
	Serial bool
	// Keyed has the stream run as in mode deterministic, with all that can be keyed keyed.
	Keyed bool
	// Top, when not empty, is the step whose elements the stream gives: what stands above it is left out.
	Top string
	// Meters, when not empty, has steps counted that tf.data's own model of a running iterator forgets, under this name: one
	// that no other iterator of the process has.
	Meters string
}

// StreamGraphs are the graphs that a worker runs for one stream: A alone, or A feeding B through PecanPull.
//
// Divided at a cached step, Below is what lies under it, and A begins with what the worker gives.
type StreamGraphs struct {
	A          []byte
	B          []byte
	BelowCache []byte
	// FileNames are the strings in Below that may be names of files.
	FileNames []string
	// Files are At.Files.
	Files map[string]string
	// Shared are the tables and variables in the graphs that other streams find by their names: made with the graphs' datasets, and
	// freed by Freeing.
	Shared []Shared
	// Ops are the ops of the registered graph's dataset nodes, by name. A stream may run a step as another op.
	Ops map[string]string
	// Output is the name of the _Retval node that marks the dataset in A and B.
	Output string
}
