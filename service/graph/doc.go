// Package graph holds a checked tf.data graph. It needs no TensorFlow.
//
// It promises: Parse refuses every graph that a worker could not run or should not run, and each refusal is a
// *reason.Error. A Graph never changes after Parse, so many goroutines may use one Graph. Equal pipelines have equal
// fingerprints.
//
// The files in reading order: graph.go (the type and its look-ups), parse.go (from bytes to a Graph), limits.go,
// policy.go (which ops are allowed), functions.go, structure.go, arity.go, numbers.go and state.go (the checks),
// variables.go (which functions change which variables), fingerprint.go, spec.go (components of elements), steps.go
// (the tree of dataset steps), marks.go (steps that the author marked), editor.go (builds a changed copy).
//
// The packages below it: nodedef reads and writes single nodes, ops knows TensorFlow's ops, analysis and dataflow say
// what steps and functions do, split plans the streams, rewrite writes a stream's graphs, order moves steps.
// The checks stay together in this package because each of them guards the same unfinished Graph.
//
// Do not decide here how a dataset is divided, and do not change a Graph: build another one with an Editor.
package graph
