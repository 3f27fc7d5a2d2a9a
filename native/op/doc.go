// Package op is how elements get into TensorFlow: operations and kernels that a trainer's graph calls, registered
// through TensorFlow's C API when the shared object is loaded, so the object is bound to no C++ ABI and no version.
//
//	from_tensors(PecanJob) → flat_map: PecanOpen(job) → token
//	    → endless range → map: PecanNextBlock(token) → unbatch                rows of small elements, or none yet
//	                    or map: PecanNext(token) → filter: ready → map: drop it   an element, or none yet
//
// # Who owns what
//
// A job tensor and a token tensor each hold a handle, and their deallocators are the destructors: TensorFlow drops the
// last reference to a token when the iterator goes, finished or not, and the last one to a job when neither Python nor
// any graph knows the dataset any more. An open iteration keeps its job.
//
// Elements lie in package buffer's blocks. A tensor of any size worth it wraps its part of the block and holds a
// reference; small ones are copied, which is cheaper than the bookkeeping; strings have to be.
//
// # Waiting
//
// Kernels are synchronous (the C API's asynchronous ones cannot finish later) and cannot see a cancellation, so none
// waits longer than MaxWait: the graph asks again, and between two calls TensorFlow looks whether anybody still wants an
// answer. That is what makes deleting a starved iterator, or leaving the interpreter, quick. A signal the user sends
// with Ctrl-C is seen at the end of the same slice.
//
// # Fork
//
// Go's threads do not survive fork(): any call into Go from the child would wait for ever. The C side counts forks and
// refuses before it calls.
package op
