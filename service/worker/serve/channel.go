package serve

import (
	"context"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// channel is one reader of one window over a connection.
type channel struct {
	conn  *conn
	id    uint32
	lease uint64
	// sequence is the number of the channel's OPEN at this worker. The newest OPEN wins.
	sequence uint64
	// remainder is set if the window holds the remainder for the closing stream.
	remainder   bool
	checksum    bool
	compression pecanv1.Compression

	// conn.mu guards the fields below. window is nil until the stream is found.
	window *window.Window
	credit uint64
	queued bool
	closed bool
	// giveUp ends the search for the stream.
	giveUp context.CancelFunc
	// ended is set if the END or the error of the whole channel was sent.
	ended bool

	// wantsReady is set if the reader opened the channel without credit, and grants it when a READY has announced a frame.
	// readySent is set if a READY was sent since the last CREDIT.
	wantsReady, readySent bool

	// Only the connection's writing goroutine uses it.
	sent uint64
}

// Lease implements Reader.
func (c *channel) Lease() uint64 { return c.lease }

// Asked implements Reader.
func (c *channel) Asked() uint64 { return c.sequence }

// Remainder implements Reader.
func (c *channel) Remainder() bool { return c.remainder }

// Wake implements Reader.
func (c *channel) Wake() { c.conn.enqueue(c) }

// Refuse implements Reader.
func (c *channel) Refuse(why *reason.Error) { c.conn.refuse(c, why) }

// Bind implements Reader.
func (c *channel) Bind(w *window.Window) {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.window = w
}

func (c *channel) flags() frame.Flags {
	if c.remainder {
		return frame.Remainder
	}
	return 0
}
