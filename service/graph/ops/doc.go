// Package ops describes TensorFlow's ops: their definitions, and how tf.data's steps treat their elements.
//
// It promises: if a table does not list an op, nothing is assumed about that op.
//
// registry.go reads the embedded list of definitions, which genops.py writes from the installed TensorFlow.
// rules.go is the table of dataset ops. functions.go, parallel.go, state.go and stateless.go group ops by
// their behaviour. names.go reads the words of a table.
//
// A new tf.data op gets its line in rules.go. Do not look at whole graphs here.
package ops
