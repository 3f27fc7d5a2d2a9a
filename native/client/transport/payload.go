package transport

import (
	"hash/crc32"
	"io"

	"github.com/golang/snappy"
	"golang.org/x/sys/unix"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// readBytes is how much of a payload arrives at most before it counts as activity of the connection.
const readBytes = 8 << 20

// wakeBytes is how much of a large payload arrives on a TCP connection before the kernel wakes the reader. A
// wake-up for every segment costs a fifth of the throughput.
const wakeBytes = 1 << 20

// discard skips a payload that nobody wants.
func (r *reader) discard(h frame.Header, table *frame.Table) error {
	if h.Flags&frame.Shared != 0 {
		r.conn.send(frame.Header{Type: frame.Release, Index: table.Slot})
		return nil
	}
	for left := h.PayloadLen; left > 0; {
		n := min(left, readBytes)
		if _, err := r.in.Discard(int(n)); err != nil {
			return err
		}
		r.conn.activity.Add(1)
		left -= n
	}
	return nil
}

// payload reads the frame's values into a buffer.
func (r *reader) payload(h frame.Header, table *frame.Table) (*buffer.Buffer, error) {
	switch {
	case h.Flags&frame.Shared != 0:
		return r.sharedPayload(h, table)
	case h.PayloadLen == 0 && h.RawLen == 0:
		return nil, nil
	}
	buf, err := r.conn.owner.config.Pool.Get(int(h.PayloadLen))
	if err != nil {
		return nil, err
	}
	if err := r.fill(buf.Bytes()); err != nil {
		buf.Release()
		return nil, err
	}
	if h.Flags&frame.Checksum != 0 {
		if got := crc32.Checksum(buf.Bytes(), frame.Castagnoli); checksumDiffers(got, h.PayloadCRC) {
			buf.Release()
			return nil, reason.New(reason.FrameCorrupt, "payload checksum %08x, computed %08x", h.PayloadCRC, got)
		}
	}
	if h.Flags&frame.Snappy == 0 {
		return buf, nil
	}
	defer buf.Release()
	return r.decompress(h, buf.Bytes())
}

// decompress accepts the declared length only if the header declares the same one. The header was checked
// against the table and the element size limit before.
func (r *reader) decompress(h frame.Header, packed []byte) (*buffer.Buffer, error) {
	n, err := snappy.DecodedLen(packed)
	if err != nil || uint64(n) != h.RawLen {
		return nil, reason.New(reason.FrameCorrupt, "compressed payload says it has %d bytes, its header %d", n, h.RawLen)
	}
	buf, err := r.conn.owner.config.Pool.Get(n)
	if err != nil {
		return nil, err
	}
	if _, err := snappy.Decode(buf.Bytes(), packed); err != nil {
		buf.Release()
		return nil, reason.New(reason.FrameCorrupt, "decompress payload: %w", err)
	}
	return buf, nil
}

// fill reads a payload in pieces, each of which counts as activity. A large payload bypasses the buffer of a
// TCP connection, and the kernel wakes the reader for at least wakeBytes or the remainder. The low-water mark
// never exceeds the payload, because nothing may follow it. The end of a connection always wakes the reader.
func (r *reader) fill(into []byte) error {
	from, large := io.Reader(r.in), r.socket != nil && len(into) > 2*wakeBytes
	if large {
		n, _ := io.ReadFull(r.in, into[:min(len(into), r.in.Buffered())])
		from, into = r.link, into[n:]
		defer r.wakeAt(1)
	}
	for len(into) > 0 {
		if large {
			r.wakeAt(min(len(into), wakeBytes))
		}
		n, err := from.Read(into[:min(len(into), readBytes)])
		if into = into[n:]; err != nil && len(into) > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		r.conn.activity.Add(1)
	}
	return nil
}

func (r *reader) wakeAt(bytes int) {
	if bytes == r.low {
		return
	}
	// This fails on a closed connection, which the next read reports.
	_ = r.socket.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) == nil {
			r.low = bytes
		}
	})
}
