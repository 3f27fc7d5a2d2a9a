// Package element holds the memory of elements in a trainer: an Entry is one accepted frame, and Elements are elements that
// an iteration returns.
//
// entry.go has entries, and elements.go has elements. gather.go copies between them.
//
// Entry.Cut returns Elements of a frame without a copy: both refer to one reference-counted buffer, which is freed with the
// last reference. Gather copies the elements of several small entries into one buffer. A Span names the stream indices that
// Elements came from.
//
// Do not take a lock here: an Entry belongs to a stream, and the lock of the stream's epoch guards it. Do not trust the
// lengths of strings: a worker can change values in shared memory while the trainer reads them. Therefore every access checks
// bounds, and a violation panics.
package element
