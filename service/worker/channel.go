package worker

import (
	"context"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// channel is one reader of one window over a connection.
type channel struct {
	conn  *conn
	id    uint32
	lease uint64
	// asked orders the OPENs that came to the worker: what the last one asked for counts.
	asked uint64
	// remainder: the window holds what was kept back for the closing stream.
	remainder   bool
	checksum    bool
	compression pecanv1.Compression

	// Under conn.mu. window is nil until the stream was found.
	window *window
	credit uint64
	queued bool
	closed bool
	// giveUp ends the search for the stream.
	giveUp context.CancelFunc
	// ended: the END or the error of the whole channel was sent.
	ended bool

	// Only the connection's writing goroutine touches it.
	sent uint64
}

// wake tells the connection that there may be something to send. A nil channel is nobody.
func (c *channel) wake() {
	if c != nil {
		c.conn.ready(c)
	}
}

func (c *channel) bind(w *window) {
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
