package cache

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"
)

// Segment describes a complete segment. A reader needs it to open the file. The caller keeps Checksum outside of the file too, so that no other file can
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
	Key         string
	Part, Parts uint32
	// Source identifies the source of the elements.
	Source string
}

// footer is what the end of a segment says of it.
type footer struct {
	ID
	elements uint64
	// dtypes are the dtypes of an element's tensors.
	dtypes []uint32
	blocks []block
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
	header      = "pecan-cache/3\n\x00\x00"
	footerMagic = "PCNF"
	tailBytes   = 12
	chunkHeader = 24
	entryBytes  = 32
	// The first chunk of a block in the file, chunks in a block, and payloads have this alignment. Zeros fill the gaps.
	alignment = 64
	// blockBytes is the size at which a block is full. A block with one larger chunk is larger.
	blockBytes = 1 << 20
	// maxBlock is the size of the largest block, so that its index entry has room for the zeros before it.
	maxBlock = math.MaxUint32 - alignment
	// maxRatio is an upper bound of snappy's compression ratio.
	maxRatio = 64
)

// checksum returns the checksum of consecutive pieces.
func checksum(pieces ...[]byte) uint32 {
	var sum summer
	for _, piece := range pieces {
		sum.add(piece)
	}
	return sum.checksum()
}

// summer computes a checksum piece by piece. It is half of a 64-bit hash, which is several times as fast as CRC32C on processors
// without a pipeline for its instruction.
type summer struct{ xxh3.Hasher }

func (s *summer) add(data []byte) { _, _ = s.Write(data) }

func (s *summer) checksum() uint32 { return uint32(s.Sum64()) }

// block is an entry of the footer's index.
type block struct {
	offset, elements uint64
	stored, raw      uint32
	sum, flags       uint32
}

// snappyBlock is the flag of a compressed block.
const snappyBlock = 1

// aligned returns the first multiple of alignment that is not below n.
func aligned[N int | uint64](n N) N { return (n + alignment - 1) / alignment * alignment }

var zeros [alignment]byte

// pad appends zeros up to the next multiple of alignment.
func pad(dst []byte) []byte { return append(dst, zeros[:aligned(len(dst))-len(dst)]...) }

// appendFooter appends the footer.
func appendFooter(dst []byte, f footer) []byte {
	le := binary.LittleEndian
	dst = append(dst, footerMagic...)
	for _, n := range []uint32{f.Part, f.Parts, uint32(len(f.blocks))} {
		dst = le.AppendUint32(dst, n)
	}
	dst = le.AppendUint64(dst, f.elements)
	for _, text := range []string{f.Key, f.Source} {
		dst = le.AppendUint32(dst, uint32(len(text)))
		dst = append(dst, text...)
	}
	dst = le.AppendUint32(dst, uint32(len(f.dtypes)))
	for _, t := range f.dtypes {
		dst = le.AppendUint32(dst, t)
	}
	for _, b := range f.blocks {
		dst = le.AppendUint64(dst, b.offset)
		dst = le.AppendUint64(dst, b.elements)
		for _, n := range []uint32{b.stored, b.raw, b.sum, b.flags} {
			dst = le.AppendUint32(dst, n)
		}
	}
	return dst
}

// parseFooter parses a footer. It allocates no more than the size of the footer allows.
func parseFooter(data []byte) (f footer, err error) {
	le := binary.LittleEndian
	short := fmt.Errorf("%w: its footer ends early", errInvalid)
	if len(data) < 24 || string(data[:4]) != footerMagic {
		return f, short
	}
	f.Part, f.Parts, f.elements = le.Uint32(data[4:]), le.Uint32(data[8:]), le.Uint64(data[16:])
	count := uint64(le.Uint32(data[12:]))
	data = data[24:]
	for _, text := range []*string{&f.Key, &f.Source} {
		if len(data) < 4 || uint64(le.Uint32(data)) > uint64(len(data)-4) {
			return f, short
		}
		n := le.Uint32(data)
		*text, data = string(data[4:4+n]), data[4+n:]
	}
	if len(data) < 4 || uint64(le.Uint32(data))*4+count*entryBytes != uint64(len(data)-4) {
		return f, short
	}
	f.dtypes, data = make([]uint32, le.Uint32(data)), data[4:]
	for i := range f.dtypes {
		f.dtypes[i], data = le.Uint32(data), data[4:]
	}
	f.blocks = make([]block, count)
	for i := range f.blocks {
		f.blocks[i] = block{
			offset: le.Uint64(data), elements: le.Uint64(data[8:]), stored: le.Uint32(data[16:]), raw: le.Uint32(data[20:]),
			sum: le.Uint32(data[24:]), flags: le.Uint32(data[28:]),
		}
		data = data[entryBytes:]
	}
	return f, nil
}

// chunkBytes returns the bytes of a chunk in its block.
func chunkBytes(c *Chunk) int { return aligned(chunkHeader+len(c.Meta)) + aligned(c.Size()) }

// appendChunk appends a chunk to a block, whose length is a multiple of alignment before and afterwards.
func appendChunk(dst []byte, c *Chunk) []byte {
	le := binary.LittleEndian
	for _, n := range []uint32{uint32(c.Count), c.Flags, uint32(len(c.Meta)), 0} {
		dst = le.AppendUint32(dst, n)
	}
	dst = le.AppendUint64(dst, uint64(c.Size()))
	dst = pad(append(dst, c.Meta...))
	for _, piece := range c.Payload {
		dst = append(dst, piece...)
	}
	return pad(dst)
}

// takeChunk parses the first chunk of a block and returns the remaining bytes.
func takeChunk(data []byte) (c Chunk, rest []byte, err error) {
	le := binary.LittleEndian
	if len(data) < chunkHeader {
		return c, nil, fmt.Errorf("%w: a block ends early", errInvalid)
	}
	meta, reserved, size, have := uint64(le.Uint32(data[8:])), le.Uint32(data[12:]), le.Uint64(data[16:]), uint64(len(data))
	c.Count, c.Flags = int(le.Uint32(data)), le.Uint32(data[4:])
	from := aligned(chunkHeader + meta)
	if from > have || size > have-from || aligned(size) > have-from || c.Count == 0 || reserved != 0 {
		return c, nil, fmt.Errorf("%w: a chunk ends early", errInvalid)
	}
	c.Meta, c.Payload = data[chunkHeader:chunkHeader+meta], [][]byte{data[from : from+size]}
	return c, data[from+aligned(size):], nil
}
