package serve

import (
	"net"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// writeBatch is frames on their way to the socket.
type writeBatch struct {
	buffers net.Buffers
	bytes   int
	held    []*window.Entry
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
