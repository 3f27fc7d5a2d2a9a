// Package element holds the memory of elements in a trainer: a Chunk is one accepted frame, and Rows are what an iteration hands out.
//
// Chunk.Cut makes Rows of a frame without a copy: both refer to one counted buffer block, which is free when the last reference is
// released. Gather copies the rows of several small chunks into one block. A Span names the stream indices that Rows came from.
//
// Nothing here takes a lock. A Chunk belongs to its stream, whose epoch's lock guards it. In shared memory a worker can change values
// while they are read: bounds are therefore checked on every access to the lengths of strings, and a violation panics.
package element
