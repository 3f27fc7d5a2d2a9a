// Package analysis describes the steps of a dataset: how many elements they give, what their functions cost,
// draw and change, and whether two runs give the same elements.
//
// It promises: an answer is certain, or it is the cautious one. Nothing runs, and the Graph does not change.
// An Analysis caches its answers and belongs to one goroutine.
//
// The files in reading order: analysis.go, cardinality.go, endless.go, facts.go and functions.go (what
// functions do), cost.go, repeatable.go (which steps keep order and count), keyed.go (which steps can draw by
// element index), determinism.go (the determinism class), mode.go (the mode in which a job can run).
//
// Do not analyse single tensors here: package dataflow does that. Do not decide here where a dataset is
// divided.
package analysis
