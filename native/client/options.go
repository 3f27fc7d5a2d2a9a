package client

import (
	"time"

	"go.uber.org/multierr"

	"github.com/pecan-ml/pecan/native/client/resume"
	"github.com/pecan-ml/pecan/native/client/transport"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// IterOptions says how one iteration reads.
type IterOptions struct {
	// MaxOutstandingBytes bounds what has been asked for and not been taken, over all streams; each stream may hold one
	// element at least, however large. Default 256 MiB.
	MaxOutstandingBytes int64
	// Compression overrides the job's unless UNSPECIFIED.
	Compression pecanv1.Compression
	// Protocol defaults to Auto.
	Protocol transport.Protocol
	// Deterministic takes the streams strictly in turn. A job of MODE_DETERMINISTIC does so anyway.
	Deterministic bool
	// Timeout is how long a Next waits for what is not there before it fails: a dispatcher that is away, or a worker, where
	// none is registered or none can be reached. However long a worker that is there takes is no outage. Default: the session's.
	Timeout time.Duration
	// NoPrefetch leaves it to Open to open the next pass, also where it could be opened ahead of need.
	NoPrefetch bool
	// Resume is where the iteration begins; nil at the start of an epoch.
	Resume *resume.Point

	// positions is told of every delivery; nil where nobody asks for it.
	log *resume.Log
}

// Validate reports every problem at once.
func (o IterOptions) Validate() error {
	var err error
	if o.MaxOutstandingBytes < 0 {
		err = multierr.Append(err, reason.New(reason.BadArgument, "max_outstanding_bytes of %d: give a number above 0, or 0 for %d", o.MaxOutstandingBytes, int64(DefaultMaxOutstandingBytes)))
	}
	switch o.Protocol {
	case "", transport.Auto, transport.TCP, transport.SHM:
	default:
		err = multierr.Append(err, reason.New(reason.BadArgument, "data_transfer_protocol %q: give \"auto\", \"tcp\" or \"shm\"", string(o.Protocol)))
	}
	if _, known := pecanv1.Compression_name[int32(o.Compression)]; !known {
		err = multierr.Append(err, reason.New(reason.BadArgument, "compression %d is unknown", o.Compression))
	}
	if o.Timeout < 0 {
		err = multierr.Append(err, reason.New(reason.BadArgument, "dispatcher timeout of %v: give a duration above 0", o.Timeout))
	}
	return err
}
