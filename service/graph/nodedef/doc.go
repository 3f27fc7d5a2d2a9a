// Package nodedef reads and writes single NodeDefs and FunctionDefs of TensorFlow.
//
// It promises: a reader never panics on a node that is nil, incomplete or hostile; it reports that it found nothing.
//
// const.go reads and writes constants, attr.go writes attributes, node.go handles names and inputs, function.go handles
// calls and signatures.
//
// Do not look at more than one node or one function here. What an op means belongs to package ops.
package nodedef
