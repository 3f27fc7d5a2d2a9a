package client

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
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// bufferPool is where payloads go.
type bufferPool interface {
	Get(n int) (*buffer.Block, error)
}

const (
	readBuffer = 64 << 10
	// pieceBytes is how much of a payload may come before the connection counts as alive again.
	pieceBytes = 8 << 20
	// wakeBytes is how much of a large payload comes from a TCP connection before the reader is woken for it: a look at the
	// socket for every segment costs a fifth of the rate.
	wakeBytes = 1 << 20
	// ackBytes is how much is taken in at most before it is acknowledged although more is waiting to be read.
	ackBytes = 1 << 20
)

// reader takes frames off a connection. It belongs to one goroutine.
type reader struct {
	conn   *conn
	link   net.Conn
	in     *bufio.Reader
	frames *frame.Reader
	slots  map[uint64]*buffer.Slot
	// socket is that of a TCP connection, nil otherwise; low is its low-water mark.
	socket syscall.RawConn
	low    int
	// touched are the channels that have received something since they last acknowledged.
	touched map[*Channel]struct{}
	unacked uint64
}

func newReader(c *conn, link net.Conn) *reader {
	in := bufio.NewReaderSize(link, readBuffer)
	r := &reader{conn: c, link: link, in: in, frames: frame.NewReader(in), low: 1, slots: map[uint64]*buffer.Slot{}, touched: map[*Channel]struct{}{}}
	if tcp, ok := link.(*net.TCPConn); ok {
		// Without it large payloads are read as they come.
		r.socket, _ = tcp.SyscallConn()
	}
	return r
}

// close unmaps the slots and closes descriptors that were not claimed.
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

// run reads until the connection fails, which it always does in the end.
func (r *reader) run() error {
	for {
		h, meta, err := r.frames.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return reason.New(reason.Unavailable, "worker %s closed the connection", r.conn.worker.GetWorkerId())
			}
			return fmt.Errorf("read from worker %s: %w", r.conn.worker.GetWorkerId(), unavailable(err))
		}
		r.conn.heard.Add(1)
		if err := r.handle(h, meta); err != nil {
			return fmt.Errorf("read from worker %s: %w", r.conn.worker.GetWorkerId(), unavailable(err))
		}
		if r.unacked >= ackBytes || r.in.Buffered() < frame.HeaderSize {
			r.acknowledge()
		}
	}
}

// acknowledge sends what is owed before the next read may block.
func (r *reader) acknowledge() {
	for ch := range r.touched {
		ch.receiver.Acknowledge()
	}
	clear(r.touched)
	r.unacked = 0
}

func (r *reader) handle(h frame.Header, meta []byte) error {
	switch h.Type {
	case frame.Data:
		return r.data(h, meta)
	case frame.End:
		if ch := r.conn.channel(h.Channel); ch != nil {
			ch.receiver.End(h.Index, h.Lease)
		}
		return nil
	case frame.Error:
		return r.failure(h, meta)
	case frame.Slot:
		return r.slot(h)
	case frame.Drop:
		if slot := r.slots[h.Index]; slot != nil {
			delete(r.slots, h.Index)
			slot.Drop()
		}
		return nil
	case frame.Ping:
		r.conn.send(frame.Header{Type: frame.Pong, Index: h.Index}, nil)
		return nil
	case frame.Pong:
		return nil
	}
	return reason.New(reason.FrameCorrupt, "a worker does not send frames of type %v", h.Type)
}

// failure handles ERROR: of an element, of a channel, or, on channel 0, of the connection.
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
		r.conn.forget(ch)
		ch.receiver.Refused(why)
		return nil
	}
	h.Count = 1
	wanted, err := ch.receiver.Wants(h)
	if err != nil || !wanted {
		return err
	}
	ch.receiver.Add(entry{first: h.Index, rows: 1, err: why})
	r.touched[ch] = struct{}{}
	return nil
}

// data takes in a DATA frame. Whatever happens to its elements, its payload is taken off the connection, and a slot
// is given back.
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
	en := entry{first: h.Index, rows: int(h.Count), bytes: h.RawLen, arrived: h.RawLen, table: table, isBlock: h.Flags&frame.Block != 0}
	if wanted {
		limit := ch.maxElement
		if size := largest(h, table); size > limit {
			wanted = false
			// The element keeps its place, as one that failed.
			defer ch.receiver.Add(entry{first: h.Index, rows: int(h.Count), arrived: h.RawLen, err: reason.New(reason.ElementTooLarge, "%s has %d bytes, the limit is %d: "+
				"raise max_element_bytes, or make elements smaller", ch.receiver.Name(h.Index), size, limit)})
		}
	}
	if !wanted {
		return r.discard(h, table)
	}
	var err error
	if en.block, err = r.payload(h, table); err != nil {
		return err
	}
	if en.strings, err = checkStrings(h, table, en.block.Bytes()); err != nil {
		en.release()
		return err
	}
	if ch.receiver.Add(en) {
		r.touched[ch] = struct{}{}
		r.unacked += h.RawLen
	}
	return nil
}

// largest is the size of the frame's largest element, padding not counted.
func largest(h frame.Header, table *frame.Table) uint64 {
	var size, all uint64
	for i := range table.Rows {
		if table.Components > 0 && i%table.Components == 0 {
			all, size = max(all, size), 0
		}
		size += table.Rows[i].Bytes
	}
	all = max(all, size)
	if h.Flags&frame.Block != 0 {
		return all / uint64(h.Count)
	}
	return all
}

// discard leaves out a payload that nobody wants.
func (r *reader) discard(h frame.Header, table *frame.Table) error {
	if h.Flags&frame.Shared != 0 {
		r.conn.send(frame.Header{Type: frame.Release, Index: table.Slot}, nil)
		return nil
	}
	for left := h.PayloadLen; left > 0; {
		n := min(left, pieceBytes)
		if _, err := r.in.Discard(int(n)); err != nil {
			return err
		}
		r.conn.heard.Add(1)
		left -= n
	}
	return nil
}

// payload brings the frame's values into a block.
func (r *reader) payload(h frame.Header, table *frame.Table) (*buffer.Block, error) {
	switch {
	case h.Flags&frame.Shared != 0:
		return r.shared(h, table)
	case h.PayloadLen == 0 && h.RawLen == 0:
		return nil, nil
	}
	block, err := r.conn.owner.config.Pool.Get(int(h.PayloadLen))
	if err != nil {
		return nil, err
	}
	if err := r.fill(block.Bytes()); err != nil {
		block.Release()
		return nil, err
	}
	if h.Flags&frame.Checksum != 0 {
		if got := crc32.Checksum(block.Bytes(), frame.Castagnoli); damaged(got, h.PayloadCRC) {
			block.Release()
			return nil, reason.New(reason.FrameCorrupt, "payload checksum %08x, computed %08x", h.PayloadCRC, got)
		}
	}
	if h.Flags&frame.Snappy == 0 {
		return block, nil
	}
	defer block.Release()
	return r.decompress(h, block.Bytes())
}

// decompress believes a declared length only when the header declares the same, which was held against the table and
// the limit of an element before.
func (r *reader) decompress(h frame.Header, packed []byte) (*buffer.Block, error) {
	n, err := snappy.DecodedLen(packed)
	if err != nil || uint64(n) != h.RawLen {
		return nil, reason.New(reason.FrameCorrupt, "compressed payload says it has %d bytes, its header %d", n, h.RawLen)
	}
	block, err := r.conn.owner.config.Pool.Get(n)
	if err != nil {
		return nil, err
	}
	if _, err := snappy.Decode(block.Bytes(), packed); err != nil {
		block.Release()
		return nil, reason.New(reason.FrameCorrupt, "decompress payload: %w", err)
	}
	return block, nil
}

// fill brings a payload in, in pieces that each count as a sign of life. A large one is read past the buffer of a TCP connection,
// and the kernel wakes the reader for no less than wakeBytes or what is left: the mark never goes beyond the payload, since nothing
// need come behind it. A connection that ends wakes the reader in any case.
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
		n, err := from.Read(into[:min(len(into), pieceBytes)])
		if into = into[n:]; err != nil && len(into) > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		r.conn.heard.Add(1)
	}
	return nil
}

func (r *reader) wakeAt(bytes int) {
	if bytes == r.low {
		return
	}
	// It fails on a connection that is closed, which the next read tells.
	_ = r.socket.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) == nil {
			r.low = bytes
		}
	})
}

// slot maps a slot that the worker announces, with the descriptor that came along.
func (r *reader) slot(h frame.Header) error {
	link, ok := r.link.(*unixLink)
	if !ok || len(link.files) == 0 {
		return reason.New(reason.FrameCorrupt, "slot %d was announced without its descriptor", h.Index)
	}
	file := link.files[0]
	link.files = link.files[1:]
	defer func() { _ = file.Close() }()
	if r.slots[h.Index] != nil {
		return reason.New(reason.FrameCorrupt, "slot %d was announced twice", h.Index)
	}
	slot, err := r.conn.owner.config.Pool.MapSlot(int(file.Fd()), int64(h.RawLen))
	if err != nil {
		return reason.New(reason.FrameCorrupt, "slot %d: %w", h.Index, err)
	}
	r.slots[h.Index] = slot
	return nil
}

// shared takes a payload where it lies. The last release of the block lets the worker write the slot again.
func (r *reader) shared(h frame.Header, table *frame.Table) (*buffer.Block, error) {
	slot := r.slots[table.Slot]
	if slot == nil {
		return nil, reason.New(reason.FrameCorrupt, "payload in slot %d, which was not announced", table.Slot)
	}
	c, number := r.conn, table.Slot
	block, err := slot.Read(int(min(h.RawLen, frame.MaxPayload)), func() {
		c.send(frame.Header{Type: frame.Release, Index: number}, nil)
	})
	if err != nil {
		return nil, reason.New(reason.FrameCorrupt, "slot %d: %w", table.Slot, err)
	}
	return block, nil
}

// checkStrings holds the lengths of strings against the bytes that are there. For a block it gives where the strings
// of the first row start.
func checkStrings(h frame.Header, table *frame.Table, data []byte) ([]uint64, error) {
	var starts []uint64
	copies := uint64(1)
	if h.Flags&frame.Block != 0 {
		copies = uint64(h.Count)
	}
	for i := range table.Rows {
		row := &table.Rows[i]
		if row.DType != frame.DTString {
			continue
		}
		if starts == nil && copies > 0 && h.Flags&frame.Block != 0 {
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
