// Package analysis describes the steps of a dataset: counts, costs, what functions do, and whether runs repeat
// elements.
//
// It promises: an answer is certain, or it is the cautious one. Nothing runs, and the Graph does not change. An
// Analysis caches its answers and belongs to one goroutine.
//
// The files in reading order: analysis.go; cardinality.go and endless.go count elements; facts.go and functions.go say
// what functions do; cost.go weighs them. extents.go finds steps that read parts of files. repeatable.go says which
// steps keep order and count, and keyed.go which steps can draw by element index. determinism.go finds the determinism
// class, and mode.go the mode in which a job can run.
//
// Do not analyse single tensors here: package dataflow does that. Do not decide here where a dataset is divided.
package analysis
