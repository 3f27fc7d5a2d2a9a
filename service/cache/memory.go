package cache

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
