// Package checkpoint stores the state of iterators in a directory that all workers see (docs/formats/checkpoint.md).
//
// A Dir (dir.go) lists, writes, reads and prunes the checkpoints of streams. Write is atomic: a checkpoint exists whole or not at
// all. Read verifies checksums and origin: it returns only a checkpoint of the same stream, plan, order and TensorFlow.
// Nothing outside of the directory can be reached through it.
//
// The run decides when a checkpoint is taken or restored. Do not decide that here, and do not call TensorFlow.
package checkpoint
