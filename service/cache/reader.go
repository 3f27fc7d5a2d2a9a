package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/golang/snappy"
)

// Reader reads one segment from its beginning. It is not safe for concurrent use. Every error except io.EOF wraps errInvalid.
type Reader struct {
	name   string
	file   Readable
	size   int64
	dtypes []uint32
	blocks []block
	next   int
	stored []byte
	raw    []byte
	// rest has the unread bytes of the block. left is the number of elements in them.
	rest []byte
	left uint64
}

// Open opens a segment. The file must match the description of its writer.
func (d *Dir) Open(s Segment) (*Reader, error) {
	if !ValidName(s.Name) {
		return nil, fmt.Errorf("%w: %q is not the name of a segment", errInvalid, s.Name)
	}
	file, size, err := d.fs.Open(s.Name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	r := &Reader{name: s.Name, file: file, size: size}
	if err := r.check(s); err != nil {
		_ = file.Close()
		return nil, err
	}
	return r, nil
}

// invalid returns an error with the cause as text only, unless that is ErrSlow. It does not wrap other causes: the io.EOF of a
// truncated file must not look like the end of the elements.
func (r *Reader) invalid(format string, args ...any) error {
	err := fmt.Errorf("%w: %s: %s", errInvalid, r.name, fmt.Sprintf(format, args...))
	for _, arg := range args {
		if cause, is := arg.(error); is && errors.Is(cause, ErrSlow) {
			return fmt.Errorf("%w: %w", ErrSlow, err)
		}
	}
	return err
}

// check reads header and footer, and refuses a file that is not exactly the segment that its writer described.
func (r *Reader) check(s Segment) error {
	if r.size != s.Bytes || r.size < int64(len(header)+tailBytes) {
		return r.invalid("it has %d bytes, %d were written", r.size, s.Bytes)
	}
	var head [len(header)]byte
	var tail [tailBytes]byte
	if _, err := r.file.ReadAt(head[:], 0); err != nil {
		return r.invalid("read: %v", err)
	}
	if _, err := r.file.ReadAt(tail[:], r.size-tailBytes); err != nil {
		return r.invalid("read: %v", err)
	}
	length, crc := int64(binary.LittleEndian.Uint32(tail[:])), binary.LittleEndian.Uint32(tail[4:])
	if string(head[:]) != header || string(tail[8:]) != footerMagic || crc != s.Checksum || length > r.size-int64(len(header)+tailBytes) {
		return r.invalid("it is not a segment, of another version, or another segment")
	}
	footer := make([]byte, length)
	if _, err := r.file.ReadAt(footer, r.size-tailBytes-length); err != nil {
		return r.invalid("read: %v", err)
	}
	if checksum(footer) != crc {
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
	return r.checkBlocks(parsed.blocks, parsed.elements, uint64(r.size-tailBytes-length))
}

// Reuse takes over the memory of a reader that has come to its end.
func (r *Reader) Reuse(spent *Reader) { r.stored, r.raw = spent.stored, spent.raw }

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

// Next returns the next chunk, or io.EOF after the last one. The chunk is valid until the next call.
func (r *Reader) Next() (Chunk, error) {
	for len(r.rest) == 0 {
		if r.left > 0 {
			return Chunk{}, r.invalid("block %d has fewer elements than its index says", r.next-1)
		}
		if r.next == len(r.blocks) {
			return Chunk{}, io.EOF
		}
		if err := r.load(r.blocks[r.next]); err != nil {
			return Chunk{}, err
		}
		r.next++
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

func (r *Reader) load(b block) error {
	r.stored = grow(r.stored, int(b.stored))
	if _, err := r.file.ReadAt(r.stored, int64(b.offset)); err != nil {
		return r.invalid("read block %d: %v", r.next, err)
	}
	if checksum(r.stored) != b.crc {
		return r.invalid("block %d is damaged", r.next)
	}
	chunks := r.stored[aligned(b.offset)-b.offset:]
	r.rest, r.left = chunks, b.elements
	if b.flags&snappyBlock == 0 {
		return nil
	}
	if n, err := snappy.DecodedLen(chunks); err != nil || n != int(b.raw) {
		return r.invalid("block %d has the wrong uncompressed length", r.next)
	}
	r.raw = grow(r.raw, int(b.raw))
	out, err := snappy.Decode(r.raw, chunks)
	if err != nil {
		return r.invalid("block %d: %v", r.next, err)
	}
	r.rest = out
	return nil
}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// DTypes returns the dtypes of an element's tensors.
func (r *Reader) DTypes() []uint32 { return r.dtypes }

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }
