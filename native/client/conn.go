package client

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 5 * time.Second
	writeLimit       = 10 * time.Second
)

type connKey struct {
	worker   string
	address  string
	protocol Protocol
}

// conn is the one data connection to a worker, for all streams that are read from it. It is made once: when it fails,
// its channels are told, and whoever wants the worker again gets a new conn.
type conn struct {
	owner  *Workers
	key    connKey
	worker *pecanv1.WorkerAddress
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	// heard counts signs of life.
	heard atomic.Uint64

	mu sync.Mutex
	// up: the worker has answered HELLO. down: the connection is over, for that reason.
	up       bool
	down     *ending
	raw      net.Conn
	channels map[uint32]*Channel
	last     uint32
	// out is what the writer sends next.
	out    []byte
	usedAt time.Time
}

// ending is why a connection is over. unreachable: it could not even be made, or the worker fell silent on it.
type ending struct {
	why         error
	unreachable bool
}

// Connect finds or makes the connection to a worker. nil without an error: the session is closing. An error is final.
func (w *Workers) Connect(worker *pecanv1.WorkerAddress, protocol Protocol) (*conn, error) {
	near := w.near(worker)
	if protocol == SHM && !near {
		return nil, reason.New(reason.Unsupported, "data_transfer_protocol=\"shm\": worker %s at %s is not on this host, or has no Unix socket: "+
			"start workers on the trainer's host, or give \"auto\" or \"tcp\"", worker.GetWorkerId(), worker.GetTcp())
	}
	if !near {
		protocol = TCP
	}
	key := connKey{worker: worker.GetWorkerId(), address: worker.GetTcp() + "|" + worker.GetUnix(), protocol: protocol}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, nil
	}
	if c := w.conns[key]; c != nil {
		return c, nil
	}
	c := &conn{owner: w, key: key, worker: worker, wake: make(chan struct{}, 1), channels: map[uint32]*Channel{}, usedAt: time.Now()}
	c.ctx, c.cancel = context.WithCancel(w.ctx)
	w.conns[key] = c
	w.wg.Go(c.run)
	return c, nil
}

// run makes the connection and reads it to its end.
func (c *conn) run() {
	link, err := c.connect()
	if err != nil {
		c.end(err, true)
		return
	}
	c.mu.Lock()
	if c.down != nil {
		c.mu.Unlock()
		_ = link.Close()
		return
	}
	c.up, c.raw = true, link
	c.mu.Unlock()
	nudge(c.wake)
	c.owner.wg.Go(func() { c.write(link) })
	r := newReader(c, link)
	err = r.run()
	c.end(err, false)
	r.close()
}

// connect dials and shakes hands: over the Unix socket when the worker is near, over TCP when that is allowed and the
// first does not work.
func (c *conn) connect() (net.Conn, error) {
	if c.key.protocol != TCP {
		link, err := c.try("unix", c.worker.GetUnix())
		if err == nil || c.key.protocol == SHM || c.ctx.Err() != nil {
			return link, err
		}
		c.owner.config.Logger.Info("no shared memory with a worker on this host, reading over TCP", "worker", c.worker.GetWorkerId(), "error", err)
	}
	return c.try("tcp", c.worker.GetTcp())
}

func (c *conn) try(network, address string) (net.Conn, error) {
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
	// The handshake ends with the session, too.
	stop := context.AfterFunc(c.ctx, func() { _ = link.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.handshake(link); err != nil {
		_ = link.Close()
		return nil, err
	}
	return link, nil
}

func (c *conn) handshake(link net.Conn) error {
	fail := func(err error) error {
		return reason.New(reason.From(err).Reason, "greet worker %s at %s: %w", c.worker.GetWorkerId(), link.RemoteAddr(), err)
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
	// Read without a buffer: what follows belongs to the reader.
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

// unavailable turns errors of the network into ours; errors of the format stay.
func unavailable(err error) error {
	if own := reason.From(err); own.Reason != reason.Internal {
		return own
	}
	return reason.New(reason.Unavailable, "%w", err)
}

// errorOf reads the meta data of an ERROR frame.
func errorOf(meta []byte) *reason.Error {
	var detail pecanv1.ErrorDetail
	if err := proto.Unmarshal(meta, &detail); err != nil {
		return reason.New(reason.FrameCorrupt, "an error frame cannot be read: %w", err)
	}
	return reason.FromDetail(&detail)
}

// open asks for a stream on a new channel, or tells how the connection ended. It may be called with the receiver's locks held.
func (c *conn) open(receiver Receiver, request *pecanv1.OpenStream, maxElement uint64) (*Channel, *ending) {
	meta, err := proto.Marshal(request)
	if err != nil {
		return nil, &ending{why: reason.New(reason.Internal, "open stream %d: %w", request.GetId().GetStream(), err)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return nil, c.down
	}
	c.last++
	if c.last == 0 {
		c.last++
	}
	ch := &Channel{conn: c, number: c.last, lease: request.GetLease(), receiver: receiver, maxElement: maxElement}
	c.channels[ch.number] = ch
	c.sendLocked(frame.Header{Type: frame.Open, Channel: ch.number, Lease: ch.lease, Index: request.GetStartIndex()}, meta)
	return ch, nil
}

// shut takes a channel off and tells the worker. The caller holds epoch.mu.
func (c *conn) shut(ch *Channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgetLocked(ch) {
		c.sendLocked(frame.Header{Type: frame.Close, Channel: ch.number, Lease: ch.lease}, nil)
	}
}

// forget takes off a channel that the worker has closed.
func (c *conn) forget(ch *Channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLocked(ch)
}

func (c *conn) forgetLocked(ch *Channel) bool {
	if c.channels[ch.number] != ch {
		return false
	}
	delete(c.channels, ch.number)
	if len(c.channels) == 0 {
		c.usedAt = time.Now()
	}
	return true
}

func (c *conn) channel(number uint32) *Channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.channels[number]
}

// send queues a frame for the writer. It never blocks: what is queued is bounded by what was opened and received.
func (c *conn) send(h frame.Header, meta []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendLocked(h, meta)
}

func (c *conn) sendLocked(h frame.Header, meta []byte) {
	if c.down != nil {
		return
	}
	c.out = frame.Append(c.out, h, meta)
	nudge(c.wake)
}

// write sends what is queued, and asks a silent worker whether it lives.
func (c *conn) write(link net.Conn) {
	ticker := time.NewTicker(c.owner.config.PingAfter)
	defer ticker.Stop()
	var spare []byte
	silent, heard := 0, c.heard.Load()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		case <-ticker.C:
			if now := c.heard.Load(); now != heard {
				silent, heard = 0, now
				break
			}
			if silent++; silent > 2 {
				// Another try would wait as long again for a first answer.
				c.end(reason.New(reason.Unavailable, "worker %s has been silent for %v", c.worker.GetWorkerId(), 3*c.owner.config.PingAfter), true)
				return
			}
			c.send(frame.Header{Type: frame.Ping}, nil)
		}
		c.mu.Lock()
		out := c.out
		c.out = spare[:0]
		c.mu.Unlock()
		if len(out) > 0 {
			// A failed deadline shows in the write.
			_ = link.SetWriteDeadline(time.Now().Add(writeLimit))
			if _, err := link.Write(out); err != nil {
				c.fail(reason.New(reason.Unavailable, "write to worker %s: %w", c.worker.GetWorkerId(), err))
				return
			}
		}
		spare = out
	}
}

// fail ends the connection; its channels are told why.
func (c *conn) fail(why error) { c.end(why, false) }

func (c *conn) end(why error, unreachable bool) {
	c.mu.Lock()
	if c.down != nil {
		c.mu.Unlock()
		return
	}
	c.down = &ending{why: why, unreachable: unreachable}
	channels := make([]*Channel, 0, len(c.channels))
	for _, ch := range c.channels {
		channels = append(channels, ch)
	}
	c.channels, c.out = map[uint32]*Channel{}, nil
	raw := c.raw
	c.mu.Unlock()
	c.cancel()
	if raw != nil {
		_ = raw.Close()
	}
	c.owner.mu.Lock()
	if c.owner.conns[c.key] == c {
		delete(c.owner.conns, c.key)
	}
	c.owner.mu.Unlock()
	if len(channels) > 0 {
		c.owner.config.Logger.Info("connection to a worker ended", "worker", c.worker.GetWorkerId(), "streams", len(channels), "error", why)
	}
	for _, ch := range channels {
		ch.receiver.Lost(why, unreachable)
	}
}

func (c *conn) isUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up && c.down == nil
}

// idleFor is how long nobody has read from the connection; 0 while somebody does.
func (c *conn) idleFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.channels) > 0 {
		return 0
	}
	return time.Since(c.usedAt)
}
