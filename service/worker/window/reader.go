package window

import (
	"github.com/pecan-ml/pecan/proto/reason"
)

// Reader is who reads a window: a channel of a connection.
type Reader interface {
	// Lease is the one under which it opened the stream.
	Lease() uint64
	// Asked orders the OPENs that came to the worker: what the last one asked for counts.
	Asked() uint64
	// Remainder: it wants what was kept back for the closing stream.
	Remainder() bool
	// Bind names the window from which it is sent what is ready.
	Bind(w *Window)
	// Wake tells it that there may be something to send.
	Wake()
	// Refuse closes it and says why.
	Refuse(why *reason.Error)
}
