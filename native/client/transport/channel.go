package transport

import (
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Receiver takes what comes on one channel. Its methods are called without a lock held, by the goroutine that reads the connection
// (Lost: by the one that ends it), and must not wait.
type Receiver interface {
	// Wants decides on a DATA or ERROR frame before its payload is read. An error ends the connection.
	Wants(h frame.Header) (bool, error)
	// Add takes over a chunk that was wanted, and its memory. False: it is not wanted any more.
	Add(en element.Chunk) bool
	// End is called for an END frame: the stream has so many elements.
	End(count, lease uint64)
	// Acknowledge is called when the reader has nothing else to do, or has taken in a good deal.
	Acknowledge()
	// Refused is called when the worker closed the channel with an error.
	Refused(why *reason.Error)
	// Lost is called when the connection failed. unreachable: another try has little hope.
	Lost(why error, unreachable bool)
	// Name names an element for messages.
	Name(index uint64) string
}

// Channel is one opening of a stream on a connection.
type Channel struct {
	conn     *Conn
	number   uint32
	lease    uint64
	receiver Receiver
	// maxElement is the largest element that is taken.
	maxElement uint64
}

// Close takes the channel off its connection and tells the worker. It may be called with the receiver's locks held.
func (ch *Channel) Close() { ch.conn.closeChannel(ch) }

// Credit tells the worker that everything below received has arrived, and that it may send up to grant bytes in all.
func (ch *Channel) Credit(received, grant uint64) {
	ch.conn.send(frame.Header{Type: frame.Credit, Channel: ch.number, Index: received, Lease: ch.lease, RawLen: grant}, nil)
}

// Connected is true while the connection stands.
func (ch *Channel) Connected() bool { return ch.conn.isUp() }
