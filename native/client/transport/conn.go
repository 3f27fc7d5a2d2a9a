package transport

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/wait"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

type connKey struct {
	worker   string
	address  string
	protocol Protocol
}

// Conn is the data connection to one worker, shared by all streams that are read from it. It connects once.
// When it fails, its receivers learn the reason, and Workers.Connect makes a new Conn.
type Conn struct {
	owner  *Workers
	key    connKey
	worker *pecanv1.WorkerAddress
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	// activity counts frames and payload pieces that arrived.
	activity atomic.Uint64

	mu sync.Mutex
	// up is set if the worker has answered HELLO. down is the reason why the connection has ended; nil before that.
	up       bool
	down     *Ending
	raw      net.Conn
	channels map[uint32]*Channel
	last     uint32
	// out has the messages that the writer sends next.
	out    []byte
	usedAt time.Time
}

// Ending is why a connection ended. Unreachable is set if it was never established, or the worker was silent on it.
type Ending struct {
	Err         error
	Unreachable bool
}

// run establishes the connection and reads it to its end.
func (c *Conn) run() {
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
	wait.Signal(c.wake)
	c.owner.wg.Go(func() { c.write(link) })
	r := newReader(c, link)
	err = r.run()
	c.end(err, false)
	r.close()
}

// Open requests a stream on a new channel, or returns how the connection ended. The receiver's lock may be
// held.
func (c *Conn) Open(receiver Receiver, request *pecanv1.OpenStream, maxElement uint64) (*Channel, *Ending) {
	meta, err := proto.Marshal(request)
	if err != nil {
		return nil, &Ending{Err: reason.New(reason.Internal, "open stream %d: %w", request.GetId().GetStream(), err)}
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
	ch := &Channel{conn: c, number: c.last, lease: request.GetLease(), receiver: receiver, stream: request.GetId(), maxElement: maxElement}
	c.channels[ch.number] = ch
	c.sendLocked(frame.Header{Type: frame.Open, Channel: ch.number, Lease: ch.lease, Index: request.GetStartIndex()}, meta)
	return ch, nil
}

// closeChannel removes a channel and tells the worker. The receiver's lock is held.
func (c *Conn) closeChannel(ch *Channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removeLocked(ch) {
		c.sendLocked(frame.Header{Type: frame.Close, Channel: ch.number, Lease: ch.lease}, nil)
	}
}

// remove removes a channel that the worker has closed.
func (c *Conn) remove(ch *Channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(ch)
}

func (c *Conn) removeLocked(ch *Channel) bool {
	if c.channels[ch.number] != ch {
		return false
	}
	delete(c.channels, ch.number)
	if len(c.channels) == 0 {
		c.usedAt = time.Now()
	}
	return true
}

func (c *Conn) channel(number uint32) *Channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.channels[number]
}

// fail ends the connection; its receivers learn why.
func (c *Conn) fail(why error) { c.end(why, false) }

// end ends the connection once, and reports the reason to the receivers of its channels. It calls them without a lock.
func (c *Conn) end(why error, unreachable bool) {
	c.mu.Lock()
	if c.down != nil {
		c.mu.Unlock()
		return
	}
	c.down = &Ending{Err: why, Unreachable: unreachable}
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
		c.owner.config.Logger.Info("the connection to a worker ended", "worker", c.worker.GetWorkerId(), "streams", len(channels), "error", why)
	}
	for _, ch := range channels {
		ch.receiver.Lost(why, unreachable)
	}
}

func (c *Conn) isUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up && c.down == nil
}

// idleFor returns for how long nobody has read from the connection; 0 while somebody does.
func (c *Conn) idleFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.channels) > 0 {
		return 0
	}
	return time.Since(c.usedAt)
}
