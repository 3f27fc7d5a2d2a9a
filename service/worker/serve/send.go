package serve

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/payload"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// failureMeta is the metadata of the ERROR frame.
func failureMeta(failure *reason.Error) []byte {
	meta, err := proto.Marshal(failure.Detail())
	if err != nil {
		// Only invalid UTF-8 in TensorFlow's message can cause this.
		detail := failure.Detail()
		detail.Message = "an error whose message is not valid UTF-8"
		meta, _ = proto.Marshal(detail)
	}
	return meta
}

// A write to the socket gathers frames up to these bounds.
const (
	batchBytes   = 1 << 20
	batchBuffers = 512
)

// enqueue queues a channel that may have something to send.
func (c *conn) enqueue(ch *channel) {
	c.mu.Lock()
	if ch.queued || ch.closed {
		c.mu.Unlock()
		return
	}
	ch.queued = true
	c.queue = append(c.queue, ch)
	c.mu.Unlock()
	c.wake()
}

// write sends until the connection ends.
func (c *conn) write() {
	defer c.nc.Close()
	ticker := time.NewTicker(pingPeriod)
	defer ticker.Stop()
	var b writeBatch
	defer b.release()
	for {
		for {
			more, err := c.gather(&b)
			if err == nil {
				err = c.flush(&b)
			}
			if err != nil {
				return
			}
			if !more {
				break
			}
		}
		select {
		case <-c.ctx.Done():
			return
		case <-c.signal:
		case <-ticker.C:
			if time.Since(c.begun)-time.Duration(c.lastFrame.Load()) > silenceTimeout {
				c.log.Warn("a data connection ends: the reader is silent", "for", silenceTimeout)
				return
			}
			if c.push(frame.Append(nil, frame.Header{Type: frame.Ping}, nil)) != nil {
				return
			}
		}
	}
}

// gather fills the batch from the queue, one frame per channel in turn. more reports that the batch is full and
// that frames may remain. It is false if the queue is empty.
func (c *conn) gather(b *writeBatch) (more bool, err error) {
	for {
		c.mu.Lock()
		for _, encoded := range c.control {
			b.add(encoded)
		}
		clear(c.control)
		c.control = c.control[:0]
		if len(c.queue) == 0 {
			c.mu.Unlock()
			return false, nil
		}
		ch := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		ch.queued = false
		credit, closed, window := ch.credit, ch.closed || ch.ended, ch.window
		c.mu.Unlock()
		if closed || window == nil {
			continue
		}
		again, err := c.gatherChannel(b, ch, window, credit)
		if err != nil {
			return false, err
		}
		if again {
			c.enqueue(ch)
		}
		if b.bytes >= batchBytes || len(b.buffers) >= batchBuffers {
			return true, nil
		}
	}
}

// gatherChannel adds one frame of a channel; again reports whether there may be another.
func (c *conn) gatherChannel(b *writeBatch, ch *channel, window *window.Window, credit uint64) (again bool, err error) {
	t := window.Take(ch, ch.sent < credit)
	switch {
	case t.Entry != nil && t.Entry.Failure != nil:
		b.header(frame.Header{Type: frame.Error, Flags: frame.Element | ch.flags(), Channel: ch.id, Index: t.Entry.First, Lease: ch.lease},
			failureMeta(t.Entry.Failure))
		t.Entry.Release()
		return true, nil
	case t.Entry != nil:
		// The batch must not hold the entry before data returns. data may send a slot, which flushes the batch and
		// releases all entries that the batch holds. If the stream was closed meanwhile, that would be the entry's last
		// reference, and data would read freed memory.
		err := c.data(b, ch, t)
		b.held = append(b.held, t.Entry)
		return true, err
	case t.Failed != nil:
		c.refuse(ch, t.Failed)
	case t.Ended:
		c.mu.Lock()
		ch.ended = true
		c.mu.Unlock()
		b.header(frame.Header{Type: frame.End, Flags: ch.flags(), Channel: ch.id, Index: t.Count, Lease: ch.lease}, nil)
	case t.Blocked && ch.wantsReady:
		bytes := window.NextBytes(ch)
		c.mu.Lock()
		// A CREDIT that came meanwhile has queued the channel again.
		send := bytes > 0 && !ch.readySent && ch.credit <= ch.sent
		ch.readySent = ch.readySent || send
		c.mu.Unlock()
		if send {
			b.header(frame.Header{Type: frame.Ready, Channel: ch.id, Lease: ch.lease, RawLen: bytes}, nil)
		}
	}
	return false, nil
}

// data adds one DATA frame.
func (c *conn) data(b *writeBatch, ch *channel, t window.Taken) error {
	p := t.Entry.Body.Frame(t.From)
	h := frame.Header{
		Type: frame.Data, Flags: p.Flags | ch.flags(), Channel: ch.id, Count: t.Entry.Count - uint32(t.From),
		Index: t.Entry.First + uint64(t.From), Lease: ch.lease, PayloadLen: p.Raw, RawLen: p.Raw,
	}
	ch.sent += p.Raw
	c.server.sentElements.Add(uint64(h.Count))
	c.server.sentBytes.Add(p.Raw)
	if c.shared && p.Raw >= minSlot {
		done, err := c.dataInSlot(b, h, p)
		if done || err != nil {
			return err
		}
	}
	if c.unix == nil && c.link.compresses(ch.compression, p) {
		compress(&h, &p)
	}
	if ch.checksum {
		h.Flags |= frame.Checksum
		for _, buffer := range p.Buffers {
			h.PayloadCRC = crc32.Update(h.PayloadCRC, frame.Castagnoli, buffer)
		}
	}
	b.header(h, table(nil, p))
	for _, buffer := range p.Buffers {
		b.add(buffer)
	}
	return nil
}

func table(dst []byte, p payload.Parts) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(p.Components))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	return append(dst, p.Rows...)
}

// dataInSlot copies the payload into a shared memory slot. It returns false if no slot is free, because readers
// keep slots as long as they like. The payload then goes through the socket.
func (c *conn) dataInSlot(b *writeBatch, h frame.Header, p payload.Parts) (bool, error) {
	s, drop, err := c.slots.get(p.Raw)
	for _, number := range drop {
		b.header(frame.Header{Type: frame.Drop, Index: number}, nil)
	}
	if err != nil {
		c.log.Warn("shared memory is not available; elements go through the socket", "error", err)
		return false, nil
	}
	if s == nil {
		return false, nil
	}
	if s.fd >= 0 {
		if err := c.sendSlot(b, s); err != nil {
			return false, err
		}
	}
	at := 0
	for _, buffer := range p.Buffers {
		at += copy(s.memory[at:], buffer)
	}
	h.Flags |= frame.Shared
	h.PayloadLen = 0
	b.header(h, table(binary.LittleEndian.AppendUint64(nil, s.number), p))
	return true, nil
}

// sendSlot sends a SLOT frame with the descriptor of a new slot, after everything that was gathered.
func (c *conn) sendSlot(b *writeBatch, s *slot) error {
	if err := c.flush(b); err != nil {
		return err
	}
	encoded := frame.Append(nil, frame.Header{Type: frame.Slot, Index: s.number, RawLen: uint64(len(s.memory))}, nil)
	if err := c.nc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	n, _, err := c.unix.WriteMsgUnix(encoded, unix.UnixRights(s.fd), nil)
	if err != nil {
		return fmt.Errorf("send shared memory: %w", err)
	}
	s.closeFD()
	if n < len(encoded) {
		_, err = c.nc.Write(encoded[n:])
	}
	return err
}

// writeBatch is frames on their way to the socket.
type writeBatch struct {
	buffers net.Buffers
	bytes   int
	// held are the entries whose memory the frames use.
	held []*window.Entry
	// headers holds the headers of the frames. The buffers of the frames point into it.
	headers []byte
}

func (b *writeBatch) header(h frame.Header, meta []byte) {
	at := len(b.headers)
	b.headers = frame.Append(b.headers, h, meta)
	b.add(b.headers[at:])
}

func (b *writeBatch) add(piece []byte) {
	if len(piece) > 0 {
		b.buffers = append(b.buffers, piece)
		b.bytes += len(piece)
	}
}

// flush writes the batch and releases its entries.
func (c *conn) flush(b *writeBatch) error {
	if len(b.buffers) == 0 {
		b.release()
		return nil
	}
	if err := c.nc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	// WriteTo consumes the slice that it is called on. b.buffers keeps its memory for the next batch.
	buffers, begun := b.buffers, time.Now()
	_, err := buffers.WriteTo(c.nc)
	c.link.wrote(b.bytes, time.Since(begun))
	b.release()
	return err
}

func (b *writeBatch) release() {
	for _, e := range b.held {
		e.Release()
	}
	clear(b.buffers)
	clear(b.held)
	b.buffers, b.held, b.headers, b.bytes = b.buffers[:0], b.held[:0], b.headers[:0], 0
}
