package buffer

import (
	"fmt"
	"sync/atomic"
)

// Align is the alignment of every buffer. TensorFlow adopts memory with this alignment without a copy.
const Align = 64

// maxBuffer limits the size of a buffer. A larger request is a programming error or a hostile length.
const maxBuffer = 1 << 47

// Buffer is a piece of memory with a reference count. A Buffer is never used again after its last release: its
// memory comes back in a new Buffer. A superfluous release therefore cannot free memory that another holder
// has.
type Buffer struct {
	refs  atomic.Int32
	bytes []byte
	home  home
	place place
}

// home takes the memory of a buffer back.
type home interface {
	reclaim(b *Buffer)
	misuse(what string)
}

// Bytes returns the memory, as long as it was requested. It must not be accessed after Release.
func (b *Buffer) Bytes() []byte {
	if b == nil {
		return nil
	}
	return b.bytes
}

// Len returns the number of bytes requested.
func (b *Buffer) Len() int {
	if b == nil {
		return 0
	}
	return len(b.bytes)
}

// Retain adds a reference and returns the buffer. The caller must hold a reference.
func (b *Buffer) Retain() *Buffer {
	if b == nil {
		return nil
	}
	if b.refs.Add(1) <= 1 {
		b.refs.Add(-1)
		b.home.misuse("retain of a released buffer")
	}
	return b
}

// Release drops one reference. A superfluous release is counted and has no other effect; in checked mode it
// panics. A nil buffer stands for an element without bytes, and may be released.
func (b *Buffer) Release() {
	if b == nil {
		return
	}
	for {
		refs := b.refs.Load()
		if refs <= 0 {
			b.home.misuse("release of a released buffer")
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

// Stats describes what a pool holds.
type Stats struct {
	// Buffers and Bytes in use: not yet released, including shared memory.
	Buffers int64
	Bytes   int64
	// IdleBytes are kept for reuse.
	IdleBytes int64
	// MappedBytes is all memory that the pool has from the kernel, in use and idle, without shared memory.
	MappedBytes int64
	// Slots and SlotBytes count the mapped slots of shared memory, whether or not they are being read.
	Slots     int64
	SlotBytes int64
	// Gets counts buffers handed out. Reused counts those that needed no new memory.
	Gets   uint64
	Reused uint64
	// Misuses counts releases and retains of released buffers. A value other than 0 is a defect of the caller.
	Misuses uint64
}

// String formats the counts for logs.
func (s Stats) String() string {
	return fmt.Sprintf("%d buffers with %d bytes in use, %d idle, %d mapped, %d slots with %d bytes, %d of %d reused, %d misuses",
		s.Buffers, s.Bytes, s.IdleBytes, s.MappedBytes, s.Slots, s.SlotBytes, s.Reused, s.Gets, s.Misuses)
}
