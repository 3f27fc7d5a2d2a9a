package transport

import (
	"fmt"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Receiver takes in what arrives on one channel. The goroutine that reads the connection calls its methods
// without a lock held; the goroutine that ends the connection calls Lost. The methods must not block.
type Receiver interface {
	// Wants decides whether a DATA or ERROR frame is accepted, before its payload is read. An error ends the
	// connection.
	Wants(h frame.Header) (bool, error)
	// Add takes over an accepted entry and its memory. It returns false if the entry is not wanted any more.
	Add(en element.Entry) bool
	// End is called for an END frame; count is the length of the stream.
	End(count, lease uint64)
	// Acknowledge is called when the reader has nothing else to do, or has received many bytes.
	Acknowledge()
	// Refused is called when the worker closed the channel with an error.
	Refused(why *reason.Error)
	// Lost is called when the connection failed. unreachable is true if another try has little hope.
	Lost(why error, unreachable bool)
	// Ready is called for a READY frame: the worker lacks credit for a frame of this many bytes.
	Ready(bytes uint64)
}

// Channel is one opening of a stream on a connection.
type Channel struct {
	conn     *Conn
	number   uint32
	lease    uint64
	receiver Receiver
	stream   *pecanv1.StreamId
	// maxElement is the size of the largest accepted element.
	maxElement uint64
}

// Close removes the channel from its connection and tells the worker. The receiver's lock may be held.
func (ch *Channel) Close() { ch.conn.closeChannel(ch) }

// Credit tells the worker that everything below index received has arrived, and that it may send up to grant
// bytes in total.
func (ch *Channel) Credit(received, grant uint64) {
	ch.conn.send(frame.Header{Type: frame.Credit, Channel: ch.number, Index: received, Lease: ch.lease, RawLen: grant})
}

// name names an element for messages.
func (ch *Channel) name(index uint64) string {
	return fmt.Sprintf("element %d of stream %d, epoch %d, job %s", index, ch.stream.GetStream(), ch.stream.GetEpoch(), ch.stream.GetJobId())
}

// Connected reports whether the connection is established.
func (ch *Channel) Connected() bool { return ch.conn.isUp() }
