// Package order says what the steps of a dataset do as far as their order matters, and writes the dataset in another
// order.
//
// It promises: traits are certain or they are a barrier. Reorder either gives a graph that TensorFlow can run, with the
// fingerprint of the original, or an error.
//
// traits.go finds the traits, with failures.go (by what a step may fail), barriers.go (what the author keeps in place)
// and label.go. reorder.go moves the steps; shapes.go fits shapes and retype.go fits types to the new places.
//
// Whether two steps may change places is decided by the caller from the traits, not here.
package order
