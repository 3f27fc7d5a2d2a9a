package transport

import (
	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// mapSlot maps a slot that the worker announces, with the descriptor that arrived with the frame.
func (r *reader) mapSlot(h frame.Header) error {
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

// sharedPayload returns a payload in shared memory without a copy. When the last reference to the buffer is
// released, the worker may write the slot again.
func (r *reader) sharedPayload(h frame.Header, table *frame.Table) (*buffer.Buffer, error) {
	slot := r.slots[table.Slot]
	if slot == nil {
		return nil, reason.New(reason.FrameCorrupt, "payload in slot %d, which was not announced", table.Slot)
	}
	c, number := r.conn, table.Slot
	buf, err := slot.Read(int(min(h.RawLen, frame.MaxPayload)), func() {
		c.send(frame.Header{Type: frame.Release, Index: number})
	})
	if err != nil {
		return nil, reason.New(reason.FrameCorrupt, "slot %d: %w", table.Slot, err)
	}
	return buf, nil
}
