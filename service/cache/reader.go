package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/golang/snappy"
)

const (
	// endBytes is how much of the end of a file one call reads. The footer is in it, unless the segment has hundreds of blocks.
	endBytes = 16 << 10
	// listedFor is for how long a list says that missing files are lost.
	listedFor = 10 * time.Second
)

// Reader reads one segment from its beginning. It is not safe for concurrent use. Every error except io.EOF wraps errInvalid.
type Reader struct {
	name   string
	dir    *Dir
	file   *patientReadable
	alloc  Alloc
	size   int64
	dtypes []uint32
	blocks []block
	next   int
	// ahead has the blocks that are read ahead, by their number, and begun is the number of the first one that is not.
	ahead [mostAhead]ahead
	begun int
	// block has the bytes of the newest block. rest are its unread chunks, and left is the number of elements in them.
	block Block
	rest  []byte
	left  uint64
}

// Open opens a segment, and reads its first block. The file must match the description of its writer. Blocks are read into memory
// of alloc.
func (d *Dir) Open(s Segment, alloc Alloc) (*Reader, error) {
	if !ValidName(s.Name) {
		return nil, fmt.Errorf("%w: %q is not the name of a segment", errInvalid, s.Name)
	}
	file, size, err := d.fs.Open(s.Name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, d.failed(err))
	}
	r := &Reader{name: s.Name, dir: d, file: file, alloc: alloc, size: size}
	if err := r.check(s); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// failed returns the error of a file that cannot be read. It is ErrNoAnswer if nothing of the directory can be read: the file may be valid.
// One list counts for all files that are missing in the next seconds: a list of a bucket is expensive.
func (d *Dir) failed(err error) error {
	if errors.Is(err, ErrNoAnswer) {
		return err
	}
	d.failing.Lock()
	defer d.failing.Unlock()
	if errors.Is(err, fs.ErrNotExist) && time.Since(d.listed) < listedFor {
		return err
	}
	if _, none := d.fs.List(); none != nil {
		return fmt.Errorf("%w: %w", ErrNoAnswer, none)
	}
	d.listed = time.Now()
	return err
}

// invalid returns an error with the cause as text only, unless that is ErrNoAnswer. It does not wrap other causes: the io.EOF of a
// truncated file must not look like the end of the elements.
func (r *Reader) invalid(format string, args ...any) error {
	err := fmt.Errorf("%w: %s: %s", errInvalid, r.name, fmt.Sprintf(format, args...))
	for _, arg := range args {
		if cause, is := arg.(error); is && errors.Is(cause, ErrNoAnswer) {
			return fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
	}
	return err
}

// check reads the footer and the first block, and refuses a file that is not exactly the segment that its writer described.
func (r *Reader) check(s Segment) error {
	if r.size != s.Bytes || r.size < int64(len(header)+tailBytes) {
		return r.invalid("%v", r.dir.failed(fmt.Errorf("it has %d bytes, %d were written", r.size, s.Bytes)))
	}
	from := max(0, r.size-endBytes)
	end, data, _, err := r.read(from, from, r.size)
	if err != nil {
		return r.invalid("read: %v", err)
	}
	defer func() { release(end) }()
	size := int64(len(data))
	tail := data[size-tailBytes:]
	length, sum := int64(binary.LittleEndian.Uint32(tail)), binary.LittleEndian.Uint32(tail[4:])
	if string(tail[8:]) != footerMagic || sum != s.Checksum || length > r.size-int64(len(header)+tailBytes) {
		return r.invalid("it is not a segment, or another segment")
	}
	if length += tailBytes; length > size {
		end.Release()
		if end, data, _, err = r.read(r.size-length, r.size-length, r.size); err != nil {
			return r.invalid("read: %v", err)
		}
		size = length
	}
	footer := data[size-length : size-tailBytes]
	if checksum(footer) != sum {
		return r.invalid("its footer is damaged")
	}
	parsed, err := parseFooter(footer)
	if err != nil {
		return err
	}
	if parsed.ID != s.ID || parsed.elements != s.Elements {
		return r.invalid("it has elements of another part, cache or source")
	}
	r.dtypes = parsed.dtypes
	if err := r.checkBlocks(parsed.blocks, parsed.elements, uint64(r.size-length)); err != nil {
		return err
	}
	if len(r.blocks) > 0 {
		// The header is read with the first block.
		return r.load()
	}
	memory, head, _, err := r.read(0, 0, int64(len(header)))
	if err != nil {
		return r.invalid("read: %v", err)
	}
	defer memory.Release()
	return r.checkHeader(head)
}

func (r *Reader) checkHeader(data []byte) error {
	if string(data[:len(header)]) != header {
		return r.invalid("it is not a segment, or of another version")
	}
	return nil
}

// read reads the file from one offset to another one. The checksum is that of the bytes from the offset at on. data is the part of
// the memory that has them.
func (r *Reader) read(from, at, to int64) (memory Block, data []byte, sum uint32, err error) {
	begin, end, extra := from, to, 0
	if r.file.isDirect() {
		begin, end, extra = from&^(directAlign-1), (to+directAlign-1)&^(directAlign-1), directAlign
	}
	if memory, err = r.alloc(int(end-begin) + extra); err != nil {
		return nil, nil, 0, err
	}
	data = memory.Bytes()
	if extra > 0 {
		data = alignedTo(data, int(end-begin))
	}
	if sum, err = r.file.fill(memory, data, begin, int(at-begin), int(to-begin)); err != nil {
		memory.Release()
		return nil, nil, 0, r.dir.failed(err)
	}
	return memory, data[from-begin : to-begin], sum, nil
}

// checkBlocks checks that the blocks are contiguous and add up to the segment, before any block is read.
func (r *Reader) checkBlocks(blocks []block, elements, end uint64) error {
	at, sum := uint64(len(header)), uint64(0)
	for _, b := range blocks {
		gap := aligned(at) - at
		switch {
		case b.offset != at, uint64(b.stored) > end-at, uint64(b.stored) < gap, b.elements > elements-sum, b.flags&^snappyBlock != 0,
			b.flags == 0 && uint64(b.raw) != uint64(b.stored)-gap, uint64(b.raw) > (uint64(b.stored)-gap)*maxRatio:
			return r.invalid("its index does not match its blocks")
		}
		at += uint64(b.stored)
		sum += b.elements
	}
	if at != end || sum != elements {
		return r.invalid("its index does not match its blocks")
	}
	r.blocks = blocks
	return nil
}

// Next returns the next chunk, or io.EOF after the last one. The chunk is valid until the next call, and for as long as the caller
// retains its Block.
func (r *Reader) Next() (Chunk, error) {
	for len(r.rest) == 0 {
		if r.left > 0 {
			return Chunk{}, r.invalid("block %d has fewer elements than its index says", r.next-1)
		}
		if r.next == len(r.blocks) {
			return Chunk{}, io.EOF
		}
		if err := r.load(); err != nil {
			return Chunk{}, err
		}
	}
	chunk, rest, err := takeChunk(r.rest)
	if err != nil {
		return Chunk{}, r.invalid("block %d: %v", r.next-1, err)
	}
	if uint64(chunk.Count) > r.left {
		return Chunk{}, r.invalid("block %d has more elements than its index says", r.next-1)
	}
	r.rest, r.left = rest, r.left-uint64(chunk.Count)
	return chunk, nil
}

// readBlock reads the block with a number. Its chunks lie at multiples of alignment in memory, as they do in the file.
func (r *Reader) readBlock(number int) (got filled) {
	at := int64(r.blocks[number].offset)
	got.memory, got.data, got.sum, got.err = r.read(at&^(alignment-1), at, at+int64(r.blocks[number].stored))
	return got
}

// readAhead begins to read the next blocks. The kernel does this for reads that are not direct.
func (r *Reader) readAhead() {
	if !r.file.isDirect() {
		return
	}
	begin := r.blocks[r.next].offset
	for r.begun = max(r.begun, r.next); r.begun < min(r.next+mostAhead, len(r.blocks)); r.begun++ {
		number := r.begun
		if last := r.blocks[number]; number > r.next && last.offset+uint64(last.stored)-begin > aheadBytes {
			return
		}
		r.ahead[number%mostAhead].begin(func() filled { return r.readBlock(number) })
	}
}

// load reads the next block for Next.
func (r *Reader) load() error {
	b := r.blocks[r.next]
	r.drop()
	r.readAhead()
	got, begun := r.ahead[r.next%mostAhead].take()
	if !begun {
		got = r.readBlock(r.next)
	}
	if got.err != nil {
		return r.invalid("read block %d: %v", r.next, got.err)
	}
	r.block, r.left = got.memory, b.elements
	if b.offset < alignment {
		if err := r.checkHeader(got.data); err != nil {
			return err
		}
	}
	if got.sum != b.sum {
		return r.invalid("block %d is damaged", r.next)
	}
	r.rest = got.data[aligned(b.offset)-b.offset&^(alignment-1):]
	if b.flags&snappyBlock != 0 {
		if err := r.decompress(int(b.raw)); err != nil {
			return err
		}
	}
	r.next++
	return nil
}

// decompress replaces the chunks of the block, which are compressed.
func (r *Reader) decompress(size int) error {
	if n, err := snappy.DecodedLen(r.rest); err != nil || n != size {
		return r.invalid("block %d has the wrong uncompressed length", r.next)
	}
	raw, err := r.alloc(size)
	if err != nil {
		return r.invalid("block %d: %v", r.next, err)
	}
	compressed := r.block
	defer compressed.Release()
	r.block = raw
	if r.rest, err = snappy.Decode(raw.Bytes(), r.rest); err != nil {
		return r.invalid("block %d: %v", r.next, err)
	}
	return nil
}

// Block returns the memory of the chunk that Next returned last. Whoever uses the chunk longer than that, retains it.
func (r *Reader) Block() Block { return r.block }

// drop releases the newest block.
func (r *Reader) drop() {
	release(r.block)
	r.block, r.rest = nil, nil
}

// DTypes returns the dtypes of an element's tensors.
func (r *Reader) DTypes() []uint32 { return r.dtypes }

// Close closes the file, and releases the newest block. It waits for a block that is read ahead.
func (r *Reader) Close() error {
	r.drop()
	for i := range r.ahead {
		if got, begun := r.ahead[i].take(); begun {
			release(got.memory)
		}
	}
	return r.file.Close()
}
