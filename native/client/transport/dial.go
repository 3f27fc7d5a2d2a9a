package transport

import (
	"context"
	"net"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const dialTimeout = 3 * time.Second

const handshakeTimeout = 5 * time.Second

// connect dials and shakes hands. It uses the Unix socket of a worker on this host. It uses TCP otherwise,
// and where the protocol allows it when the Unix socket fails.
func (c *Conn) connect() (net.Conn, error) {
	if c.key.protocol != TCP {
		link, err := c.try("unix", c.worker.GetUnix())
		if err == nil || c.key.protocol == SHM || c.ctx.Err() != nil {
			return link, err
		}
		c.owner.config.Logger.Info("no shared memory with a worker on this host, reading over TCP", "worker", c.worker.GetWorkerId(), "error", err)
	}
	return c.try("tcp", c.worker.GetTcp())
}

func (c *Conn) try(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	dial := c.owner.config.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	link, err := dial(ctx, network, address)
	if err != nil {
		return nil, reason.New(reason.Unavailable, "reach worker %s: %w", c.worker.GetWorkerId(), err)
	}
	if network == "unix" {
		link = &unixLink{UnixConn: link.(*net.UnixConn)}
	}
	// The end of the session also ends the handshake.
	stop := context.AfterFunc(c.ctx, func() { _ = link.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.handshake(link); err != nil {
		_ = link.Close()
		return nil, err
	}
	return link, nil
}

// handshake sends HELLO and reads the answer. It refuses a worker with another id, because its address may belong to a new
// worker now.
func (c *Conn) handshake(link net.Conn) error {
	fail := func(err error) error {
		return reason.New(reason.From(err).Reason, "shake hands with worker %s at %s: %w", c.worker.GetWorkerId(), link.RemoteAddr(), err)
	}
	if err := link.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return fail(err)
	}
	_, near := link.(*unixLink)
	hello, err := proto.Marshal(&pecanv1.DataHello{
		ClientId: c.owner.config.ClientID, Version: c.owner.config.Version, SharedMemory: near, WorkerId: c.worker.GetWorkerId(), ClusterId: c.owner.config.ClusterID(),
	})
	if err != nil {
		return fail(err)
	}
	if _, err := link.Write(frame.Append(nil, frame.Header{Type: frame.Hello}, hello)); err != nil {
		return fail(unavailable(err))
	}
	// The read is unbuffered, because the bytes that follow belong to the reader.
	h, meta, err := frame.NewReader(link).Next()
	if err != nil {
		return fail(unavailable(err))
	}
	switch h.Type {
	case frame.Welcome:
	case frame.Error:
		return fail(errorOf(meta))
	default:
		return fail(reason.New(reason.FrameCorrupt, "it answered with a frame of type %v", h.Type))
	}
	var welcome pecanv1.DataWelcome
	if err := proto.Unmarshal(meta, &welcome); err != nil {
		return fail(reason.New(reason.FrameCorrupt, "its answer cannot be read: %w", err))
	}
	if want := c.worker.GetWorkerId(); want != "" && welcome.GetWorkerId() != want {
		return fail(reason.New(reason.WorkerUnknown, "worker %s answers there", welcome.GetWorkerId()))
	}
	if c.key.protocol == SHM && !welcome.GetSharedMemory() {
		return fail(reason.New(reason.Unsupported, "data_transfer_protocol=\"shm\": the worker does not offer shared memory; give \"auto\" or \"tcp\""))
	}
	return link.SetDeadline(time.Time{})
}

// unavailable turns errors of the network into UNAVAILABLE. Errors of the format pass unchanged.
func unavailable(err error) error {
	if own := reason.From(err); own.Reason != reason.Internal {
		return own
	}
	return reason.New(reason.Unavailable, "%w", err)
}

// errorOf decodes the metadata of an ERROR frame.
func errorOf(meta []byte) *reason.Error {
	var detail pecanv1.ErrorDetail
	if err := proto.Unmarshal(meta, &detail); err != nil {
		return reason.New(reason.FrameCorrupt, "an error frame cannot be read: %w", err)
	}
	return reason.FromDetail(&detail)
}
