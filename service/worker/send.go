package worker

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pecan-ml/pecan/proto/frame"
)

// A write to the socket gathers frames up to these bounds.
const (
	batchBytes    = 1 << 20
	batchSegments = 512
)

// batch is frames on their way to the socket.
type batch struct {
	buffers net.Buffers
	bytes   int
	held    []*entry
	// frames with ends or errors are the last of their channel.
	headers []byte
}

// write sends until the connection ends.
func (c *conn) write() {
	defer c.nc.Close()
	ticker := time.NewTicker(pingPeriod)
	defer ticker.Stop()
	var b batch
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
			if time.Since(c.begun)-time.Duration(c.heard.Load()) > silence {
				c.log.Warn("data connection ends: the reader is silent", "for", silence)
				return
			}
			if c.push(frame.Append(nil, frame.Header{Type: frame.Ping}, nil)) != nil {
				return
			}
		}
	}
}

// gather fills the batch from what is queued, one frame per channel in turn. False: nothing is left.
func (c *conn) gather(b *batch) (more bool, err error) {
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
			c.ready(ch)
		}
		if b.bytes >= batchBytes || len(b.buffers) >= batchSegments {
			return true, nil
		}
	}
}

// gatherChannel adds one frame of a channel; again tells whether there may be another.
func (c *conn) gatherChannel(b *batch, ch *channel, window *window, credit uint64) (again bool, err error) {
	t := window.take(ch, ch.sent < credit)
	switch {
	case t.entry != nil && t.entry.failure != nil:
		b.header(frame.Header{Type: frame.Error, Flags: frame.Element | ch.flags(), Channel: ch.id, Index: t.entry.first, Lease: ch.lease},
			failureMeta(t.entry.failure))
		t.entry.release()
		return true, nil
	case t.entry != nil:
		// Not before: announcing a slot sends the batch and lets go of all that it holds, and a stream that is closed at that moment
		// has let go of the entry, too.
		err := c.data(b, ch, t)
		b.held = append(b.held, t.entry)
		return true, err
	case t.failed != nil:
		c.refuse(ch, t.failed)
	case t.ended:
		c.mu.Lock()
		ch.ended = true
		c.mu.Unlock()
		b.header(frame.Header{Type: frame.End, Flags: ch.flags(), Channel: ch.id, Index: t.count, Lease: ch.lease}, nil)
	}
	return false, nil
}

// data adds one DATA frame.
func (c *conn) data(b *batch, ch *channel, t taken) error {
	p := t.entry.body.frame(t.from)
	h := frame.Header{
		Type: frame.Data, Flags: p.flags | ch.flags(), Channel: ch.id, Count: t.entry.count - uint32(t.from),
		Index: t.entry.first + uint64(t.from), Lease: ch.lease, PayloadLen: p.raw, RawLen: p.raw,
	}
	ch.sent += p.raw
	c.server.worker.counts.sent(uint64(h.Count), p.raw)
	if c.shared && p.raw >= minSlot {
		done, err := c.shareData(b, h, p)
		if done || err != nil {
			return err
		}
	}
	if c.unix == nil && c.link.compresses(ch.compression, p) {
		compress(&h, &p)
	}
	if ch.checksum {
		h.Flags |= frame.Checksum
		for _, segment := range p.segments {
			h.PayloadCRC = crc32.Update(h.PayloadCRC, frame.Castagnoli, segment)
		}
	}
	b.header(h, table(nil, p))
	for _, segment := range p.segments {
		b.add(segment)
	}
	return nil
}

func table(dst []byte, p parts) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(p.components))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	return append(dst, p.rows...)
}

// shareData copies the payload into a shared memory slot. False: no slot is free, it has to go through the socket: a
// reader may keep what it got for as long as it likes.
func (c *conn) shareData(b *batch, h frame.Header, p parts) (bool, error) {
	s, drop, err := c.slots.get(p.raw)
	for _, number := range drop {
		b.header(frame.Header{Type: frame.Drop, Index: number}, nil)
	}
	if err != nil {
		c.log.Warn("shared memory cannot be had, elements go through the socket", "error", err)
		return false, nil
	}
	if s == nil {
		return false, nil
	}
	if s.fd >= 0 {
		if err := c.announce(b, s); err != nil {
			return false, err
		}
	}
	at := 0
	for _, segment := range p.segments {
		at += copy(s.memory[at:], segment)
	}
	h.Flags |= frame.Shared
	h.PayloadLen = 0
	b.header(h, table(binary.LittleEndian.AppendUint64(nil, s.number), p))
	return true, nil
}

// announce sends the descriptor of a new slot, behind everything that was gathered.
func (c *conn) announce(b *batch, s *slot) error {
	if err := c.flush(b); err != nil {
		return err
	}
	encoded := frame.Append(nil, frame.Header{Type: frame.Slot, Index: s.number, RawLen: uint64(len(s.memory))}, nil)
	if err := c.nc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	n, _, err := c.unix.WriteMsgUnix(encoded, unix.UnixRights(s.fd), nil)
	if err != nil {
		return fmt.Errorf("hand over shared memory: %w", err)
	}
	s.announced()
	if n < len(encoded) {
		_, err = c.nc.Write(encoded[n:])
	}
	return err
}

func (b *batch) header(h frame.Header, meta []byte) {
	at := len(b.headers)
	b.headers = frame.Append(b.headers, h, meta)
	b.add(b.headers[at:])
}

func (b *batch) add(piece []byte) {
	if len(piece) > 0 {
		b.buffers = append(b.buffers, piece)
		b.bytes += len(piece)
	}
}

// flush writes the batch and lets its entries go.
func (c *conn) flush(b *batch) error {
	if len(b.buffers) == 0 {
		b.release()
		return nil
	}
	if err := c.nc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	// WriteTo consumes the slice it is given; ours keeps its memory for the next batch.
	buffers, begun := b.buffers, time.Now()
	_, err := buffers.WriteTo(c.nc)
	c.link.wrote(b.bytes, time.Since(begun))
	b.release()
	return err
}

func (b *batch) release() {
	for _, e := range b.held {
		e.release()
	}
	clear(b.buffers)
	clear(b.held)
	b.buffers, b.held, b.headers, b.bytes = b.buffers[:0], b.held[:0], b.headers[:0], 0
}
