// Package ops knows TensorFlow's ops: their definitions, and how tf.data's steps treat their elements.
//
// It promises: an op that a table does not list is treated as an op about which nothing is known.
//
// registry.go reads the embedded list of definitions, which genops.py writes from the installed TensorFlow. rules.go is
// the table of dataset ops. functions.go, parallel.go, state.go and stateless.go group ops by what they do.
//
// A new tf.data op gets its line in rules.go. Do not look at whole graphs here.
package ops
