// Package nodedef reads and writes single NodeDefs and FunctionDefs of TensorFlow.
//
// It promises: a function that reads never panics on a nil, incomplete or hostile node. It reports that it
// found nothing.
//
// const.go reads and writes constants. attr.go writes attributes. node.go handles names and inputs.
// function.go handles calls and signatures.
//
// Do not look at more than one node or one function here. The meaning of an op belongs to package ops.
package nodedef
