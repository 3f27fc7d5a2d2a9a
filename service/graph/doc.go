// Package graph holds a checked tf.data graph. It needs no TensorFlow.
//
// It promises: Parse refuses every graph that a worker could not run or should not run, and each refusal is a
// *reason.Error. A Graph never changes after Parse, so many goroutines may use one Graph. Equal pipelines
// have equal fingerprints.
//
// The files form four groups. First, the type and its look-ups: graph.go, spec.go (components of elements),
// steps.go (the tree of dataset steps) and marks.go (steps that the author marked). Second, the way from
// bytes to a Graph: parse.go calls all checks; limits.go has the limits; policy.go (allowed ops),
// structure.go (nodes and edges), functions.go (functions and calls), numbers.go (sizes) and state.go
// (variables, tables and handles) have the checks. Third, what other packages need of a whole Graph:
// variables.go (which functions change which variables) and fingerprint.go. Fourth, editor.go builds a
// changed copy.
//
// The checks stay in this package although they take half of its lines. Each of them reads an unfinished
// Graph, which no other package may see.
//
// The packages below it: nodedef reads and writes single nodes, and ops describes TensorFlow's ops. analysis
// and dataflow describe steps and functions. split plans the streams, rewrite writes a stream's graphs, and
// order moves steps.
//
// Do not decide here how a dataset is divided. Do not change a Graph: build another one with an Editor.
package graph
