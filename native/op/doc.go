// Package op brings elements into TensorFlow. It has the operations and kernels that a trainer's graph calls. They are
// registered through TensorFlow's C API when the shared object is loaded. The object therefore depends on no C++ ABI and on
// no TensorFlow version.
//
//	from_tensors(PecanJob) → flat_map: PecanOpen(job) → iteration
//	    → endless range → map: PecanNextBlock(iteration) → unbatch                some small elements, or none yet
//	                    or map: PecanNext(iteration) → filter: ready → map: drop it   an element, or none yet
//
// handles.go has jobs and handles, and kernels.go has the functions that TensorFlow calls, and iterations. ops.c and ops.h are the C
// side of both.
//
// # Ownership
//
// A job tensor and an iteration tensor each hold a handle, and their deallocators are the destructors. TensorFlow drops
// the last reference to an iteration when the iterator is deleted, whether it has ended or not. It drops the last
// reference to a job when neither Python nor a graph refers to the dataset. An open iteration keeps its job alive.
//
// Elements lie in buffers of package buffer. A large tensor wraps its part of the buffer and holds a reference. Small
// tensors are copied, because a copy is cheaper than the bookkeeping. Strings have to be copied.
//
// # Waiting
//
// Kernels are synchronous, because the C API's asynchronous kernels cannot finish later, and they cannot see a
// cancellation. Therefore no kernel waits longer than maxWait: the graph calls again, and between two calls TensorFlow
// checks whether the result is still wanted. So a starved iterator can be deleted quickly, and the interpreter can
// exit quickly. A Ctrl-C is seen at the end of the same wait.
//
// # Fork
//
// Go's threads do not exist after fork(), so a call into Go from the child would never return. The C side counts forks
// and refuses calls in a child.
//
// Do not block in a kernel for longer than maxWait, and do not call Go in a forked child. Do not keep a tensor's memory
// after its last reference is dropped.
package op
