// Package buffer holds the memory in which elements reach a trainer, and a worker that reads a cache. There are two kinds. Buffers
// outside of Go's heap are aligned to 64 bytes, so that TensorFlow adopts them without a copy. Mappings of shared memory are written by a worker on
// this host.
//
// A Buffer counts references: every holder of a pointer into it holds one. The last release returns the memory to its Pool.
// The Pool keeps a limited amount for the next buffer, because fresh pages cost more than the bytes that are read into them.
// For shared memory the last release tells the worker that it may write the slot again.
//
// buffer.go has a Buffer and its references. pool.go has the Pool and its large blocks. slab.go has the slabs that small
// buffers share. shared.go has the slots of shared memory. checked.go has the blocks of a checked pool, which finds misuse.
// plain.go and sanitized.go say whether AddressSanitizer observes this build.
//
// Memory comes from anonymous mmap, and from neither Go's heap nor malloc. It may be given to C for as long
// as a reference is held, it never moves, and the package needs no cgo. The package must not know what the bytes mean.
package buffer
