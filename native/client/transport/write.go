package transport

import (
	"net"
	"time"

	"github.com/pecan-ml/pecan/native/client/wait"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

const writeLimit = 10 * time.Second

// send queues a frame for the writer. It never blocks: the queue is limited by what was opened and received.
func (c *Conn) send(h frame.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendLocked(h, nil)
}

func (c *Conn) sendLocked(h frame.Header, meta []byte) {
	if c.down != nil {
		return
	}
	c.out = frame.Append(c.out, h, meta)
	wait.Signal(c.wake)
}

// write sends queued frames, and pings a silent worker.
func (c *Conn) write(link net.Conn) {
	ticker := time.NewTicker(c.owner.config.PingAfter)
	defer ticker.Stop()
	var spare []byte
	silent, heard := 0, c.activity.Load()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		case <-ticker.C:
			if now := c.activity.Load(); now != heard {
				silent, heard = 0, now
				break
			}
			if silent++; silent > 2 {
				// Another attempt would wait as long for a first answer.
				c.end(reason.New(reason.Unavailable, "worker %s has been silent for %v", c.worker.GetWorkerId(), 3*c.owner.config.PingAfter), true)
				return
			}
			c.send(frame.Header{Type: frame.Ping})
		}
		c.mu.Lock()
		out := c.out
		c.out = spare[:0]
		c.mu.Unlock()
		if len(out) > 0 {
			// A failed deadline becomes visible in the write.
			_ = link.SetWriteDeadline(time.Now().Add(writeLimit))
			if _, err := link.Write(out); err != nil {
				c.fail(reason.New(reason.Unavailable, "write to worker %s: %w", c.worker.GetWorkerId(), err))
				return
			}
		}
		spare = out
	}
}
