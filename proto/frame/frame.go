package frame

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/pecan-ml/pecan/proto/reason"
)

// HeaderSize is the size of every header in bytes.
const HeaderSize = 64

// Align is the alignment of components in a payload and of payload buffers. TensorFlow uses buffers with this alignment without a copy.
const Align = 64

// Limits of the format.
const (
	Version       = 1
	MaxMeta       = 16 << 20
	MaxPayload    = 1 << 47
	maxRank       = 254
	MaxComponents = 1 << 16
)

var magic = [4]byte{'P', 'C', 'N', '1'}

// Castagnoli is the polynomial of all checksums of the format.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Type is the type of a frame.
type Type uint8

// The frame types of version 1.
const (
	Hello Type = iota + 1
	Welcome
	Open
	Credit
	Close
	Data
	End
	Error
	Slot
	Release
	Drop
	Ping
	Pong
	Ready
	lastType = Ready
)

// Flags are bits of a header.
type Flags uint16

// The flags of version 1.
const (
	Snappy Flags = 1 << iota
	Checksum
	Shared
	Element
	Remainder
	Columns
	allFlags = Snappy | Checksum | Shared | Element | Remainder | Columns
)

// Header is a frame's header without its checksum.
type Header struct {
	Type       Type
	Flags      Flags
	Channel    uint32
	Count      uint32
	Index      uint64
	Lease      uint64
	MetaLen    uint32
	PayloadCRC uint32
	PayloadLen uint64
	RawLen     uint64
}

func corrupt(format string, args ...any) error {
	return reason.New(reason.FrameCorrupt, "read frame: "+format, args...)
}

// Append appends the header and the metadata to dst. It sets MetaLen from meta.
func Append(dst []byte, h Header, meta []byte) []byte {
	var b [HeaderSize]byte
	copy(b[0:], magic[:])
	b[4] = Version
	b[5] = byte(h.Type)
	binary.LittleEndian.PutUint16(b[6:], uint16(h.Flags))
	binary.LittleEndian.PutUint32(b[8:], h.Channel)
	binary.LittleEndian.PutUint32(b[12:], h.Count)
	binary.LittleEndian.PutUint64(b[16:], h.Index)
	binary.LittleEndian.PutUint64(b[24:], h.Lease)
	binary.LittleEndian.PutUint32(b[32:], uint32(len(meta)))
	binary.LittleEndian.PutUint32(b[36:], h.PayloadCRC)
	binary.LittleEndian.PutUint64(b[40:], h.PayloadLen)
	binary.LittleEndian.PutUint64(b[48:], h.RawLen)
	crc := crc32.Update(crc32.Checksum(b[:60], Castagnoli), Castagnoli, meta)
	binary.LittleEndian.PutUint32(b[60:], crc)
	return append(append(dst, b[:]...), meta...)
}

// Reader reads headers and metadata. The caller reads the payloads, because it knows their destination.
type Reader struct {
	r    io.Reader
	head [HeaderSize]byte
	meta []byte
	// limit is the most bytes of metadata; 0: MaxMeta.
	limit uint32
}

// LimitMeta sets the most bytes of metadata that later calls of Next accept; 0 means MaxMeta. The limit bounds the memory that a peer can
// use before it is identified.
func (r *Reader) LimitMeta(limit uint32) { r.limit = limit }

// NewReader reads frames from r, which should be buffered.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next reads one header and its metadata. The metadata is valid until the next call. io.EOF means that the peer closed the connection
// between two frames.
func (r *Reader) Next() (Header, []byte, error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return Header{}, nil, err
	}
	h, err := parse(&r.head)
	if err != nil {
		return Header{}, nil, err
	}
	if r.limit > 0 && h.MetaLen > r.limit {
		return Header{}, nil, corrupt("metadata of %d bytes, limit %d here", h.MetaLen, r.limit)
	}
	// A hostile peer may announce MaxMeta bytes and send none. Long metadata is therefore allocated as it arrives.
	if int(h.MetaLen) > cap(r.meta) {
		if h.MetaLen <= 64<<10 {
			r.meta = make([]byte, h.MetaLen)
		} else if r.meta, err = readGrowing(r.r, int(h.MetaLen)); err != nil {
			return Header{}, nil, err
		}
		if h.MetaLen > 64<<10 {
			return h, r.meta, r.check()
		}
	}
	r.meta = r.meta[:h.MetaLen]
	if _, err := io.ReadFull(r.r, r.meta); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Header{}, nil, err
	}
	return h, r.meta, r.check()
}

func (r *Reader) check() error {
	crc := crc32.Update(crc32.Checksum(r.head[:60], Castagnoli), Castagnoli, r.meta)
	if got := binary.LittleEndian.Uint32(r.head[60:]); got != crc {
		return corrupt("header checksum %08x, computed %08x", got, crc)
	}
	return nil
}

func readGrowing(r io.Reader, n int) ([]byte, error) {
	buf := make([]byte, 0, 64<<10)
	for len(buf) < n {
		step := min(n-len(buf), max(64<<10, len(buf)))
		at := len(buf)
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(r, buf[at:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return buf, nil
}

func parse(b *[HeaderSize]byte) (Header, error) {
	if [4]byte(b[:4]) != magic {
		return Header{}, corrupt("magic %q is not %q: the peer does not use Pecan's data plane protocol", b[:4], magic[:])
	}
	if b[4] != Version {
		return Header{}, reason.New(reason.VersionMismatch, "read frame: version %d, this build supports %d", b[4], Version)
	}
	h := Header{
		Type:       Type(b[5]),
		Flags:      Flags(binary.LittleEndian.Uint16(b[6:])),
		Channel:    binary.LittleEndian.Uint32(b[8:]),
		Count:      binary.LittleEndian.Uint32(b[12:]),
		Index:      binary.LittleEndian.Uint64(b[16:]),
		Lease:      binary.LittleEndian.Uint64(b[24:]),
		MetaLen:    binary.LittleEndian.Uint32(b[32:]),
		PayloadCRC: binary.LittleEndian.Uint32(b[36:]),
		PayloadLen: binary.LittleEndian.Uint64(b[40:]),
		RawLen:     binary.LittleEndian.Uint64(b[48:]),
	}
	switch {
	case binary.LittleEndian.Uint32(b[56:]) != 0:
		return Header{}, corrupt("reserved bytes that are not zero")
	case h.Type == 0 || h.Type > lastType:
		return Header{}, corrupt("unknown type %d", h.Type)
	case h.Flags&^allFlags != 0:
		return Header{}, corrupt("unknown flags %#x", uint16(h.Flags))
	case h.MetaLen > MaxMeta:
		return Header{}, corrupt("metadata of %d bytes, limit %d", h.MetaLen, MaxMeta)
	case h.PayloadLen > MaxPayload:
		return Header{}, corrupt("payload of %d bytes, limit %d", h.PayloadLen, uint64(MaxPayload))
	case h.RawLen > MaxPayload && h.Type != Credit:
		return Header{}, corrupt("raw payload of %d bytes, limit %d", h.RawLen, uint64(MaxPayload))
	case h.Type != Data && h.PayloadLen != 0:
		return Header{}, corrupt("payload of %d bytes on a frame of type %d", h.PayloadLen, h.Type)
	case h.Type == Data && h.Count == 0:
		return Header{}, corrupt("data frame without elements")
	case h.Flags&Shared != 0 && (h.Flags&Snappy != 0 || h.PayloadLen != 0):
		return Header{}, corrupt("payload of %d bytes with flags %#x, but the elements are in shared memory", h.PayloadLen, uint16(h.Flags))
	case h.Flags&Snappy != 0 && h.PayloadLen > h.RawLen+h.RawLen/6+64:
		return Header{}, corrupt("payload of %d bytes, compressed from %d", h.PayloadLen, h.RawLen)
	case h.Type == Data && h.Flags&(Shared|Snappy) == 0 && h.PayloadLen != h.RawLen:
		return Header{}, corrupt("payload of %d bytes without compression, but its raw size is %d", h.PayloadLen, h.RawLen)
	case h.Index > math.MaxInt64 || h.Index+uint64(h.Count) > math.MaxInt64:
		return Header{}, corrupt("index %d with %d elements", h.Index, h.Count)
	}
	return h, nil
}

// String returns the name of the type for logs.
func (t Type) String() string {
	names := [...]string{"none", "hello", "welcome", "open", "credit", "close", "data", "end", "error", "slot", "release", "drop", "ping", "pong", "ready"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}
