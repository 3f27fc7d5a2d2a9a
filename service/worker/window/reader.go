package window

import (
	"github.com/pecan-ml/pecan/proto/reason"
)

// Reader reads a window: it is a channel of a connection.
type Reader interface {
	// Lease is the lease under which the reader opened the stream.
	Lease() uint64
	// Asked is the sequence number of the reader's OPEN at this worker. The newest OPEN wins.
	Asked() uint64
	// Remainder reports whether the reader wants the remainder for the closing stream.
	Remainder() bool
	// Bind sets the window from which the reader is sent elements.
	Bind(w *Window)
	// Wake notifies the reader that there may be something to send.
	Wake()
	// Refuse closes the reader and sends it the reason.
	Refuse(why *reason.Error)
}
