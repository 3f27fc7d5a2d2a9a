package cache

import "sync"

// Block is memory that counts its holders. Whoever gets a block from an Alloc is its first holder.
type Block interface {
	Bytes() []byte
	Retain()
	Release()
}

// Alloc returns a block of so many bytes, with any content.
type Alloc func(bytes int) (Block, error)

// Heap is an Alloc of memory that Go collects.
func Heap(bytes int) (Block, error) { return collected(make([]byte, bytes)), nil }

// collected is a block that does not need to know its holders.
type collected []byte

func (c collected) Bytes() []byte { return c }
func (collected) Retain()         {}
func (collected) Release()        {}

func release(b Block) {
	if b != nil {
		b.Release()
	}
}

// filled is a block of a file: its memory, the part of the memory that has its bytes, and their checksum.
type filled struct {
	memory Block
	data   []byte
	sum    uint32
	err    error
}

// ahead is the block that is read while the block before it is used. A reading in progress holds mu. It is no channel, because
// several threads use a reader one after the other: a simulation allows no channel between goroutines inside and outside of its bubble.
type ahead struct {
	mu    sync.Mutex
	begun bool
	got   filled
}

// begin begins to read. Nothing else is read ahead yet.
func (a *ahead) begin(read func() filled) {
	a.begun = true
	a.mu.Lock()
	go func() {
		defer a.mu.Unlock()
		a.got = read()
	}()
}

// take waits for what is read ahead, and returns it, if a reading was begun.
func (a *ahead) take() (got filled, begun bool) {
	if !a.begun {
		return got, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	got, a.got, a.begun = a.got, filled{}, false
	return got, true
}
