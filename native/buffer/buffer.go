// Package buffer holds the memory in which elements reach a trainer: blocks outside of Go's heap, aligned to 64 bytes,
// so that TensorFlow adopts them without a copy, and mappings of the shared memory that a worker on this host writes.
//
// A Block is counted: whoever keeps a pointer into it holds a reference. The last release gives the memory back to its
// Pool, which keeps a bounded amount for the next block (fresh pages cost more than the bytes that are read into them),
// or, for shared memory, tells the worker that the slot may be written again.
//
// Memory comes from anonymous mmap, not from Go's heap and not from malloc: it may be handed to C for as long as a
// reference is held, it never moves, and the package needs no cgo.
package buffer

import (
	"fmt"
	"sync/atomic"
)

// Align is the alignment of every block, what TensorFlow adopts without a copy.
const Align = 64

// MaxBlock bounds one block; a request above it is a programming error or a hostile length.
const MaxBlock = 1 << 47

// Block is a piece of memory with a count of references. A Block is never used again after its last release: its
// memory comes back in a new Block, so a release too many cannot free memory that somebody else has got meanwhile.
type Block struct {
	refs  atomic.Int32
	bytes []byte
	home  home
	place place
}

// home takes the memory of a block back.
type home interface {
	reclaim(b *Block)
	misuse(what string)
}

// Bytes is the memory, as long as it was asked for. It must not be touched after Release.
func (b *Block) Bytes() []byte {
	if b == nil {
		return nil
	}
	return b.bytes
}

// Len is the number of bytes asked for.
func (b *Block) Len() int {
	if b == nil {
		return 0
	}
	return len(b.bytes)
}

// Retain adds a reference and returns the block. The caller must hold one already.
func (b *Block) Retain() *Block {
	if b == nil {
		return nil
	}
	if b.refs.Add(1) <= 1 {
		b.refs.Add(-1)
		b.home.misuse("retain of a released block")
	}
	return b
}

// Release gives one reference back. A release too many is counted and does nothing else (in checked mode it panics).
// A nil block, which stands for an element without bytes, may be released.
func (b *Block) Release() {
	if b == nil {
		return
	}
	for {
		refs := b.refs.Load()
		if refs <= 0 {
			b.home.misuse("release of a released block")
			return
		}
		if !b.refs.CompareAndSwap(refs, refs-1) {
			continue
		}
		if refs == 1 {
			b.home.reclaim(b)
		}
		return
	}
}

// Stats tells what a pool holds.
type Stats struct {
	// Blocks and Bytes in use: got and not yet released, shared memory included.
	Blocks int64
	Bytes  int64
	// IdleBytes are kept for reuse.
	IdleBytes int64
	// MappedBytes are all that the pool has from the kernel, in use and idle, without shared memory.
	MappedBytes int64
	// Slots and SlotBytes of shared memory are mapped, read at the moment or not.
	Slots     int64
	SlotBytes int64
	// Gets and Reused count blocks handed out, and those of them that needed no new memory.
	Gets   uint64
	Reused uint64
	// Misuses counts releases and retains of released blocks. Anything but 0 is a defect of the caller.
	Misuses uint64
}

// String gives the figures for logs.
func (s Stats) String() string {
	return fmt.Sprintf("%d blocks with %d bytes in use, %d idle, %d mapped, %d slots with %d bytes, %d of %d reused, %d misuses",
		s.Blocks, s.Bytes, s.IdleBytes, s.MappedBytes, s.Slots, s.SlotBytes, s.Reused, s.Gets, s.Misuses)
}
