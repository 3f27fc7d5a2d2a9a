package transport

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"syscall"

	"github.com/golang/snappy"
	"golang.org/x/sys/unix"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// The first connections share readBuffers bytes. Each buffer has between minReadBuffer and readBuffer bytes.
const (
	readBuffers   = 1 << 20
	readBuffer    = 64 << 10
	minReadBuffer = 4 << 10
)

// readBufferOf returns the size of the read buffer of the newest of so many connections. A buffer keeps its size.
// The first 256 connections that are made one after the other have 3.7 MiB of buffers. Each further one has 4 KiB.
func readBufferOf(connections int) int {
	return min(readBuffer, max(minReadBuffer, readBuffers/max(1, connections)))
}

// ackBytes is how much is received at most before an acknowledgement, even if more is ready to be read.
const ackBytes = 1 << 20

// reader reads frames from a connection. It belongs to one goroutine.
type reader struct {
	conn   *Conn
	link   net.Conn
	in     *bufio.Reader
	frames *frame.Reader
	slots  map[uint64]*buffer.Slot
	// socket is the socket of a TCP connection; nil for another connection. low is the socket's low-water mark.
	socket syscall.RawConn
	low    int
	// touched are the channels that received something since their last acknowledgement.
	touched map[*Channel]struct{}
	unacked uint64
}

func newReader(c *Conn, link net.Conn) *reader {
	in := bufio.NewReaderSize(link, readBufferOf(c.owner.count()))
	r := &reader{conn: c, link: link, in: in, frames: frame.NewReader(in), low: 1, slots: map[uint64]*buffer.Slot{}, touched: map[*Channel]struct{}{}}
	if tcp, ok := link.(*net.TCPConn); ok {
		// Without the socket, large payloads are read segment by segment.
		r.socket, _ = tcp.SyscallConn()
	}
	return r
}

// close unmaps the slots and closes unclaimed descriptors.
func (r *reader) close() {
	for _, slot := range r.slots {
		slot.Drop()
	}
	if link, ok := r.link.(*unixLink); ok {
		for _, file := range link.files {
			_ = file.Close()
		}
		link.files = nil
	}
}

// run reads until the connection fails, which it always does at the end.
func (r *reader) run() error {
	for {
		h, meta, err := r.frames.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return reason.New(reason.Unavailable, "worker %s closed the connection", r.conn.worker.GetWorkerId())
			}
			return fmt.Errorf("read from worker %s: %w", r.conn.worker.GetWorkerId(), unavailable(err))
		}
		r.conn.activity.Add(1)
		if err := r.handle(h, meta); err != nil {
			return fmt.Errorf("read from worker %s: %w", r.conn.worker.GetWorkerId(), unavailable(err))
		}
		if r.unacked >= ackBytes || r.in.Buffered() < frame.HeaderSize {
			r.acknowledge()
		}
	}
}

// acknowledge sends pending acknowledgements before the next read may block.
func (r *reader) acknowledge() {
	for ch := range r.touched {
		ch.receiver.Acknowledge()
	}
	clear(r.touched)
	r.unacked = 0
}

// handle passes a frame to the receiver of its channel. A frame for a closed channel is ignored, because it may have been
// on its way.
func (r *reader) handle(h frame.Header, meta []byte) error {
	switch h.Type {
	case frame.Data:
		return r.data(h, meta)
	case frame.End:
		if ch := r.conn.channel(h.Channel); ch != nil {
			ch.receiver.End(h.Index, h.Lease)
		}
		return nil
	case frame.Ready:
		if ch := r.conn.channel(h.Channel); ch != nil {
			ch.receiver.Ready(h.RawLen)
		}
		return nil
	case frame.Error:
		return r.failure(h, meta)
	case frame.Slot:
		return r.mapSlot(h)
	case frame.Drop:
		if slot := r.slots[h.Index]; slot != nil {
			delete(r.slots, h.Index)
			slot.Drop()
		}
		return nil
	case frame.Ping:
		r.conn.send(frame.Header{Type: frame.Pong, Index: h.Index})
		return nil
	case frame.Pong:
		return nil
	}
	return reason.New(reason.FrameCorrupt, "a worker does not send frames of type %v", h.Type)
}

// failure handles an ERROR frame of an element, a channel or, on channel 0, the connection.
func (r *reader) failure(h frame.Header, meta []byte) error {
	why := errorOf(meta)
	if h.Channel == 0 {
		return why
	}
	ch := r.conn.channel(h.Channel)
	switch {
	case ch == nil:
		return nil
	case h.Flags&frame.Element == 0:
		r.conn.remove(ch)
		ch.receiver.Refused(why)
		return nil
	}
	h.Count = 1
	wanted, err := ch.receiver.Wants(h)
	if err != nil || !wanted {
		return err
	}
	ch.receiver.Add(element.Entry{First: h.Index, Elements: 1, Err: why})
	r.touched[ch] = struct{}{}
	return nil
}

// data takes in a DATA frame. Whether or not its elements are accepted, it reads the payload off the
// connection and returns a slot to the worker.
func (r *reader) data(h frame.Header, meta []byte) error {
	table := &frame.Table{}
	if err := frame.ParseTable(h, meta, table); err != nil {
		return err
	}
	ch := r.conn.channel(h.Channel)
	wanted := false
	if ch != nil {
		var err error
		if wanted, err = ch.receiver.Wants(h); err != nil {
			return err
		}
	}
	en := element.Entry{First: h.Index, Elements: int(h.Count), Bytes: h.RawLen, Arrived: h.RawLen, Table: table, Columnar: h.Flags&frame.Columns != 0}
	if wanted {
		limit := ch.maxElement
		if size := largestElement(h, table); size > limit {
			wanted = false
			// The element keeps its index, as a failed one.
			defer ch.receiver.Add(element.Entry{First: h.Index, Elements: int(h.Count), Arrived: h.RawLen, Err: reason.New(reason.ElementTooLarge, "%s has %d bytes, the limit is %d: "+
				"raise max_element_bytes, or make elements smaller", ch.name(h.Index), size, limit)})
		}
	}
	if !wanted {
		return r.discard(h, table)
	}
	var err error
	if en.Buffer, err = r.payload(h, table); err != nil {
		return err
	}
	if en.Strings, err = checkStrings(h, table, en.Buffer.Bytes()); err != nil {
		en.Release()
		return err
	}
	if ch.receiver.Add(en) {
		r.touched[ch] = struct{}{}
		r.unacked += h.RawLen
	}
	return nil
}

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

// largestElement returns the size of the frame's largest element, without padding.
func largestElement(h frame.Header, table *frame.Table) uint64 {
	var size, all uint64
	for i := range table.Rows {
		if table.Components > 0 && i%table.Components == 0 {
			all, size = max(all, size), 0
		}
		size += table.Rows[i].Bytes
	}
	all = max(all, size)
	if h.Flags&frame.Columns != 0 {
		return all / uint64(h.Count)
	}
	return all
}

// checkStrings compares the lengths of strings with the bytes that are there. For a columnar frame it returns where
// the strings of the first row begin.
func checkStrings(h frame.Header, table *frame.Table, data []byte) ([]uint64, error) {
	var starts []uint64
	copies := uint64(1)
	if h.Flags&frame.Columns != 0 {
		copies = uint64(h.Count)
	}
	for i := range table.Rows {
		row := &table.Rows[i]
		if row.DType != frame.DTString {
			continue
		}
		if starts == nil && copies > 0 && h.Flags&frame.Columns != 0 {
			starts = make([]uint64, len(table.Rows))
		}
		per, _ := frame.Elements(row.Dims)
		n := per * copies
		values := data[row.Offset : row.Offset+row.Bytes]
		left := row.Bytes - n*8
		for s := range n {
			length := binary.LittleEndian.Uint64(values[s*8:])
			if length > left {
				return nil, reason.New(reason.FrameCorrupt, "string %d has %d bytes where %d are left", s, length, left)
			}
			left -= length
		}
		if left != 0 {
			return nil, reason.New(reason.FrameCorrupt, "%d bytes after the last string", left)
		}
	}
	return starts, nil
}
