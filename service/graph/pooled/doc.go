// Package pooled turns the graph of one stream into a graph that runs many streams, one after another.
//
// TensorFlow shares instantiated functions only within one iterator. So an iterator over a pooled graph runs the
// dataset of a stream inside a flat_map, and reads the arguments of each stream from PecanPull. Graphs that differ
// only in arguments have one template. docs/design/0012-light-streams.md gives the reasons and the figures.
//
// It promises: with the arguments of a stream, a pooled graph gives the elements of the stream's own graph, bit for
// bit. NewTemplate refuses a graph for which that is not certain, with the reason. Such a stream needs an iterator of
// its own.
//
// separate.go separates the arguments of a stream from its template, and tensor.go decodes arguments. template.go writes
// the pooled graph. lift.go passes arguments into functions. options.go merges the options of the dataset. defaults.go
// does the rewrites that tf.data does not do for a nested dataset. inline.go makes steps compute in the thread that
// fetches. resources.go captures tables and variables. private.go says which graphs are refused.
//
// An argument is a constant that package rewrite adds. Any constant may be an argument, because its value is passed on
// unchanged. A constant that differs between streams and is no argument costs a template per stream, and changes no
// element. Do not change what a stream's graph computes: package rewrite decides that.
package pooled
