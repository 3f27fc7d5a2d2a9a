// Package order finds the traits that decide where a step may move, and writes a dataset with its steps in another
// order.
//
// It promises: a trait that is not certain makes the step a barrier. Reorder returns a graph that TensorFlow can run,
// with the fingerprint of the original, or an error.
//
// sequence.go lists the steps, with those of each branch of a join and of the functions of interleaves. traits.go finds
// the traits, with failures.go (how a step may fail), barriers.go (what the author keeps in place) and label.go (the
// author's names). reorder.go moves the steps, and bodies.go those in functions; shapes.go and retype.go fit their
// functions to the shapes and types at the new places.
//
// Do not decide here whether two steps may swap: constraints.go of service/dispatcher/ordering decides that from the
// traits.
package order
