// Package graph is what Pecan knows about tf.data graphs, without TensorFlow: it reads and checks a serialised dataset,
// gives it a fingerprint, decides how it is divided into streams (the plan), and writes the graph of each stream.
//
// The promise it keeps: over all streams of one epoch every element of a local pass is there once, in batches as local
// execution gives them. Where a step is not understood well enough to keep that, the plan has one stream and says why.
//
// The order of work is Parse (bytes to a checked Graph), Analyze (Graph and options to a Plan, a pure function of both)
// and Instantiate (Graph, Plan and a stream's position to the GraphDefs that a worker runs). A Graph never changes after
// Parse and may be used by many goroutines.
package graph
