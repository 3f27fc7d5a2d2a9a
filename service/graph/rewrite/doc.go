// Package rewrite writes the graphs that a worker runs for one stream.
//
// It promises: equal arguments give equal bytes on every worker. Random values follow from the job's seed, the epoch and the
// stream. Keyed random values follow from the seed and the element's index, whichever stream has the element.
//
// at.go has the arguments and results. instantiate.go has the order of work, and editor.go has the state. emit.go wires the
// steps; step.go and functions.go change them. index.go and keyed.go make random values keyed, and seeds.go seeds the
// others. start.go begins at an index. parts.go orders the parts of a stream. meter.go counts elements.
//
// remainder.go, pull.go, cache.go and variants.go connect graphs. resources.go, tables.go, generators.go and shared.go name
// tables and variables. options.go sets the options of a stream. serial.go makes steps compute one element at a time.
// unbatch.go divides batches with empty rows. names.go finds the registered node of an added node.
//
// The package has more files than others because all rewrites change one unfinished graph through the editor. They share its
// seeds, index column, parts and tables, and each relies on the nodes of the earlier ones. Do not decide here what is divided: the
// plan says it. A changed byte in the output breaks running jobs that resume.
package rewrite
