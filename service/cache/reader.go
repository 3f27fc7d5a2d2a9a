package cache

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/golang/snappy"
)

// Reader reads one segment from its beginning. It is not safe for concurrent use. Every error but io.EOF Is ErrSpoilt.
type Reader struct {
	name   string
	file   Readable
	size   int64
	blocks []block
	next   int
	stored []byte
	raw    []byte
	// rest is what of the block was not given yet, left how many elements that has to be.
	rest []byte
	left uint64
}

// Open opens a segment. It has to be just the one that its writer described, in every byte that says what it is.
func (d *Dir) Open(s Segment) (*Reader, error) {
	if !ValidName(s.Name) {
		return nil, fmt.Errorf("%w: %q is no name of a segment", ErrSpoilt, s.Name)
	}
	file, size, err := d.fs.Open(s.Name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpoilt, err)
	}
	r := &Reader{name: s.Name, file: file, size: size}
	if err := r.check(s); err != nil {
		_ = file.Close()
		return nil, err
	}
	return r, nil
}

// spoilt gives the cause in words alone: the io.EOF of a file that became shorter is not the end of the elements.
func (r *Reader) spoilt(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrSpoilt, r.name, fmt.Sprintf(format, args...))
}

func (r *Reader) check(s Segment) error {
	if r.size != s.Bytes || r.size < int64(len(header)+tailBytes) {
		return r.spoilt("it has %d bytes, %d were written", r.size, s.Bytes)
	}
	var head [len(header)]byte
	var tail [tailBytes]byte
	if _, err := r.file.ReadAt(head[:], 0); err != nil {
		return r.spoilt("read: %v", err)
	}
	if _, err := r.file.ReadAt(tail[:], r.size-tailBytes); err != nil {
		return r.spoilt("read: %v", err)
	}
	length, crc := int64(binary.LittleEndian.Uint32(tail[:])), binary.LittleEndian.Uint32(tail[4:])
	if string(head[:]) != header || string(tail[8:]) != footerMagic || crc != s.Checksum || length > r.size-int64(len(header)+tailBytes) {
		return r.spoilt("it is no segment, of another version, or another one")
	}
	footer := make([]byte, length)
	if _, err := r.file.ReadAt(footer, r.size-tailBytes-length); err != nil {
		return r.spoilt("read: %v", err)
	}
	if checksum(footer) != crc {
		return r.spoilt("its footer is damaged")
	}
	id, elements, blocks, err := parseFooter(footer)
	if err != nil {
		return err
	}
	if id != s.ID || elements != s.Elements {
		return r.spoilt("it has elements of another stream, cache or source")
	}
	return r.checkBlocks(blocks, elements, uint64(r.size-tailBytes-length))
}

// checkBlocks sees that the blocks lie one after the other and add up, before any is read.
func (r *Reader) checkBlocks(blocks []block, elements, end uint64) error {
	at, sum := uint64(len(header)), uint64(0)
	for _, b := range blocks {
		switch {
		case b.offset != at, uint64(b.stored) > end-at, b.elements > elements-sum, b.flags&^snappyBlock != 0,
			b.flags == 0 && b.raw != b.stored, uint64(b.raw) > uint64(b.stored)*maxRatio:
			return r.spoilt("its index does not fit its blocks")
		}
		at += uint64(b.stored)
		sum += b.elements
	}
	if at != end || sum != elements {
		return r.spoilt("its index does not fit its blocks")
	}
	r.blocks = blocks
	return nil
}

// Next gives the next chunk, io.EOF behind the last one. The chunk is valid until the next call.
func (r *Reader) Next() (Chunk, error) {
	for len(r.rest) == 0 {
		if r.left > 0 {
			return Chunk{}, r.spoilt("block %d has fewer elements than its index says", r.next-1)
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
		return Chunk{}, r.spoilt("block %d: %v", r.next-1, err)
	}
	if uint64(chunk.Count) > r.left {
		return Chunk{}, r.spoilt("block %d has more elements than its index says", r.next-1)
	}
	r.rest, r.left = rest, r.left-uint64(chunk.Count)
	return chunk, nil
}

// Skip passes over up to n elements in whole blocks and gives how many.
func (r *Reader) Skip(n uint64) (skipped uint64) {
	for len(r.rest) == 0 && r.next < len(r.blocks) && r.blocks[r.next].elements <= n-skipped {
		skipped += r.blocks[r.next].elements
		r.next++
	}
	return skipped
}

func (r *Reader) load(b block) error {
	r.stored = grow(r.stored, int(b.stored))
	if _, err := r.file.ReadAt(r.stored, int64(b.offset)); err != nil {
		return r.spoilt("read block %d: %v", r.next, err)
	}
	if checksum(r.stored) != b.crc {
		return r.spoilt("block %d is damaged", r.next)
	}
	r.rest, r.left = r.stored, b.elements
	if b.flags&snappyBlock == 0 {
		return nil
	}
	if n, err := snappy.DecodedLen(r.stored); err != nil || n != int(b.raw) {
		return r.spoilt("block %d does not say its length", r.next)
	}
	r.raw = grow(r.raw, int(b.raw))
	out, err := snappy.Decode(r.raw, r.stored)
	if err != nil {
		return r.spoilt("block %d: %v", r.next, err)
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

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }
