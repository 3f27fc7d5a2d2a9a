package cache

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Segment describes a complete segment. A reader needs it to open the file; Checksum is not in the file, so that no other file can
// replace the segment.
type Segment struct {
	Name     string
	Bytes    int64
	Checksum uint32
	Elements uint64
	ID
}

// ID identifies the elements of a segment. The file contains it too.
type ID struct {
	Key             string
	Stream, Streams uint32
	// Source identifies the source of the elements.
	Source string
}

// Chunk has the elements of one Append: consecutive elements in a form that only the caller knows.
type Chunk struct {
	// Count is the number of elements.
	Count int
	Flags uint32
	Meta  []byte
	// Payload has one piece after reading.
	Payload [][]byte
}

// Size returns the bytes of the payload.
func (c *Chunk) Size() (n int) {
	for _, piece := range c.Payload {
		n += len(piece)
	}
	return n
}

const (
	header      = "pecan-cache/1\n\x00\x00"
	footerMagic = "PCNF"
	tailBytes   = 12
	chunkHeader = 24
	entryBytes  = 32
	// blockBytes is the size at which a block is full. A block with one larger chunk is larger.
	blockBytes = 1 << 20
	// maxRatio is an upper bound of snappy's compression ratio.
	maxRatio = 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// block is an entry of the footer's index.
type block struct {
	offset, elements uint64
	stored, raw      uint32
	crc, flags       uint32
}

// snappyBlock is the flag of a compressed block.
const snappyBlock = 1

// appendFooter appends the footer: the ID of the segment and the index of its blocks.
func appendFooter(dst []byte, id ID, elements uint64, blocks []block) []byte {
	le := binary.LittleEndian
	dst = append(dst, footerMagic...)
	dst = le.AppendUint32(dst, id.Stream)
	dst = le.AppendUint32(dst, id.Streams)
	dst = le.AppendUint32(dst, uint32(len(blocks)))
	dst = le.AppendUint64(dst, elements)
	for _, text := range []string{id.Key, id.Source} {
		dst = le.AppendUint32(dst, uint32(len(text)))
		dst = append(dst, text...)
	}
	for _, b := range blocks {
		dst = le.AppendUint64(dst, b.offset)
		dst = le.AppendUint64(dst, b.elements)
		for _, n := range []uint32{b.stored, b.raw, b.crc, b.flags} {
			dst = le.AppendUint32(dst, n)
		}
	}
	return dst
}

// parseFooter parses a footer. It allocates no more than the size of the footer allows.
func parseFooter(data []byte) (id ID, elements uint64, blocks []block, err error) {
	le := binary.LittleEndian
	short := fmt.Errorf("%w: its footer ends early", errInvalid)
	if len(data) < 24 || string(data[:4]) != footerMagic {
		return id, 0, nil, short
	}
	id.Stream, id.Streams = le.Uint32(data[4:]), le.Uint32(data[8:])
	count := uint64(le.Uint32(data[12:]))
	elements = le.Uint64(data[16:])
	data = data[24:]
	for _, text := range []*string{&id.Key, &id.Source} {
		if len(data) < 4 || uint64(le.Uint32(data)) > uint64(len(data)-4) {
			return id, 0, nil, short
		}
		n := le.Uint32(data)
		*text, data = string(data[4:4+n]), data[4+n:]
	}
	if uint64(len(data)) != count*entryBytes {
		return id, 0, nil, short
	}
	blocks = make([]block, count)
	for i := range blocks {
		blocks[i] = block{
			offset: le.Uint64(data), elements: le.Uint64(data[8:]), stored: le.Uint32(data[16:]), raw: le.Uint32(data[20:]),
			crc: le.Uint32(data[24:]), flags: le.Uint32(data[28:]),
		}
		data = data[entryBytes:]
	}
	return id, elements, blocks, nil
}

func appendChunkHeader(dst []byte, c *Chunk) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(c.Count))
	dst = le.AppendUint32(dst, c.Flags)
	dst = le.AppendUint32(dst, uint32(len(c.Meta)))
	dst = le.AppendUint32(dst, 0)
	return le.AppendUint64(dst, uint64(c.Size()))
}

// takeChunk parses the first chunk of a block and returns the remaining bytes.
func takeChunk(data []byte) (c Chunk, rest []byte, err error) {
	le := binary.LittleEndian
	if len(data) < chunkHeader {
		return c, nil, fmt.Errorf("%w: a block ends early", errInvalid)
	}
	meta, size := uint64(le.Uint32(data[8:])), le.Uint64(data[16:])
	c.Count, c.Flags = int(le.Uint32(data)), le.Uint32(data[4:])
	data = data[chunkHeader:]
	if meta > uint64(len(data)) || size > uint64(len(data))-meta || c.Count == 0 {
		return c, nil, fmt.Errorf("%w: a chunk ends early", errInvalid)
	}
	c.Meta, c.Payload = data[:meta], [][]byte{data[meta : meta+size]}
	return c, data[meta+size:], nil
}
