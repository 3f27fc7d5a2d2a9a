// Package dataset provides the graphs of streams on a worker. It fetches a dataset once, keeps it parsed, and instantiates
// the graph of each stream with package rewrite.
//
// store.go keeps parsed datasets and the orders of their steps. wire.go reads single facts of a serialised graph without
// decoding all of it, because constants can make a graph large. files.go finds the versions of files that a graph names.
// tables.go frees lookup tables and variables that streams share by name.
//
// Instantiator is the interface between this package and the packages that run graphs. Do not run streams here: only
// tables.go calls TensorFlow, to free resources.
package dataset
