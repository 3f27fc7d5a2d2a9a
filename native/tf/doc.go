// Package tf runs serialised dataset graphs through TensorFlow's eager C API. It has contexts that never open an
// accelerator, iterators that can be cancelled, and tensors whose memory Go reads, or lends, without a copy. Through its source op
// PecanPull, a graph reads elements from this process.
//
// All hot paths are loops in C, so one call from Go fetches one large element or a whole block of small ones.
// The package uses exported functions of the C API, so the same binary runs with every TensorFlow that has them. executor.c
// also uses two C++ functions, and does without them if they are absent.
//
// context.go starts the runtime. iterator.go runs a graph. fill.go fetches many elements into blocks and packs. state.go
// saves and restores an iterator. pooled.go runs many streams in one iterator. pull.go registers sources. loan.go lets PecanPull fetch from an iterator without Go. tensor.go has
// tensors. registry.go lists TensorFlow's ops. error.go has TensorFlow's errors. crash.go reports crashes of native code. Their C side is executor.c (contexts
// and iterators), fill.c, tensor.c, pull.c and crash.c. tensorflow.h declares what Go calls. iterator.h and crash.h declare
// what the C files share.
//
// The package has more than 15 files because half of them are the C side of the others.
//
// Iterator.fetching is taken before Iterator.calls, which every call into TensorFlow holds for reading.
//
// Do not read or change graphs here: service/graph does. Do not decide here which stream an iterator runs: service/worker/run
// does.
package tf
