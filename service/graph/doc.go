// Package graph holds a checked tf.data graph. It needs no TensorFlow.
//
// It promises: Parse refuses every graph that a worker could not run or should not run, and each refusal is a
// *reason.Error. A Graph never changes after Parse, so many goroutines may use one Graph. Equal pipelines
// have equal fingerprints.
//
// The package has more files than others because all checks read an unfinished Graph, which no other package may see. The files form four
// groups. The type and its look-ups: graph.go, spec.go (components of elements), steps.go (the tree of dataset steps) and
// marks.go (steps that the author marked).
//
// From bytes to a Graph: parse.go calls all checks within the limits of limits.go. The checks are policy.go (allowed
// ops), structure.go (nodes and edges), functions.go (functions and calls), numbers.go (sizes) and state.go (variables,
// tables and handles). The checks take a third of the lines.
//
// Results about a whole Graph: variables.go (which functions change which variables) and fingerprint.go. The body of a
// function as a Graph: body.go. A changed copy: editor.go, and its bytes: encoding.go.
//
// The packages in its directory: nodedef reads and writes single nodes, and ops describes TensorFlow's ops. analysis and
// dataflow describe steps and functions. split plans the streams, rewrite writes a stream's graphs, and pooled makes
// graphs of them that run many streams. extents divides large record files, and order moves steps. cacheable finds the
// steps whose elements may be cached. graphtest has graphs for tests.
//
// Do not decide here how a dataset is divided. Do not change a Graph: build another one with an Editor.
package graph
