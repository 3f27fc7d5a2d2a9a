package client

import (
	"errors"
	"time"

	"github.com/pecan-ml/pecan/native/client/resume"
	"github.com/pecan-ml/pecan/native/client/transport"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// IterOptions say how one iteration reads.
type IterOptions struct {
	// MaxOutstandingBytes limits the bytes that were requested and not yet dequeued, over all streams. Each
	// stream may hold at least one element of any size. Default 256 MiB.
	MaxOutstandingBytes int64
	// Compression overrides the job's unless UNSPECIFIED.
	Compression pecanv1.Compression
	// Protocol defaults to Auto.
	Protocol transport.Protocol
	// Deterministic reads the streams strictly in turn. A job of MODE_DETERMINISTIC always does so.
	Deterministic bool
	// Timeout is how long a Next waits during an outage before it fails. In an outage, the dispatcher does not answer, or no
	// worker is registered or reachable. A worker that is connected may take any time. The default is the session's timeout.
	Timeout time.Duration
	// NoPrefetch keeps the next epoch from being opened before an iteration asks for it.
	NoPrefetch bool
	// Resume is where the iteration begins; nil for the start of an epoch.
	Resume *resume.Point

	// log records every delivery; nil if nobody needs positions.
	log *resume.Log
}

// Validate reports all problems at once.
func (o IterOptions) Validate() error {
	var err error
	if o.MaxOutstandingBytes < 0 {
		err = errors.Join(err, reason.New(reason.BadArgument, "max_outstanding_bytes of %d: give a number above 0, or 0 for %d", o.MaxOutstandingBytes, int64(defaultMaxOutstandingBytes)))
	}
	switch o.Protocol {
	case "", transport.Auto, transport.TCP, transport.SHM:
	default:
		err = errors.Join(err, reason.New(reason.BadArgument, "data_transfer_protocol %q: give \"auto\", \"tcp\" or \"shm\"", string(o.Protocol)))
	}
	if _, known := pecanv1.Compression_name[int32(o.Compression)]; !known {
		err = errors.Join(err, reason.New(reason.BadArgument, "compression %d is unknown", o.Compression))
	}
	if o.Timeout < 0 {
		err = errors.Join(err, reason.New(reason.BadArgument, "dispatcher timeout of %v: give a duration above 0", o.Timeout))
	}
	return err
}
