package serve

import (
	"bufio"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/window"
	"google.golang.org/protobuf/proto"
)

// These are the limits of one connection. A reader that exceeds them is broken or hostile, and loses its
// connection.
const (
	MaxChannels  = 4096
	maxControl   = 4096
	HelloTimeout = 10 * time.Second
	// MaxHello bounds the metadata of the first frame.
	MaxHello = 64 << 10
	// MaxRequest bounds the metadata of all other frames. An OPEN is the longest, with the names of a job and a
	// stream.
	MaxRequest = 4 << 10
	pingPeriod = 15 * time.Second
	// silenceTimeout is how long a peer may be silent although it is pinged.
	silenceTimeout = 60 * time.Second
	writeTimeout   = 60 * time.Second
)

// conn is one connection of a reader.
type conn struct {
	server *Server
	nc     net.Conn
	unix   *net.UnixConn
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	// shared is set if the reader takes elements in shared memory. The hello sets it.
	shared bool
	slots  slots
	// link belongs to the writing goroutine.
	link link
	// lastFrame is the time of the last frame, in nanoseconds since begun.
	begun     time.Time
	lastFrame atomic.Int64
	// silentEntry is the connection's place among those before their hello. reader is set if the connection counts as a
	// reader. The server's lock guards both.
	silentEntry *list.Element
	reader      bool
	// opens are the goroutines that look for the stream of an OPEN.
	opens sync.WaitGroup

	mu       sync.Mutex
	channels map[uint32]*channel
	queue    []*channel
	control  [][]byte
	signal   chan struct{}
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, nc: nc, channels: map[uint32]*channel{}, signal: make(chan struct{}, 1), begun: time.Now()}
	c.unix, _ = nc.(*net.UnixConn)
	c.link = newLink(nc)
	c.log = s.log.With("peer", nc.RemoteAddr().String())
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.slots = slots{limit: s.options.SlotBytes, all: map[uint64]*slot{}}
	return c
}

// serve reads frames until the connection ends.
func (c *conn) serve() {
	frames := frame.NewReader(bufio.NewReaderSize(c.nc, MaxRequest))
	err := c.hello(frames)
	var writing sync.WaitGroup
	if err == nil {
		writing.Go(c.write)
		err = c.read(frames)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		if kept, say := c.server.peers.allow(time.Now()); say {
			c.log.Warn("a data connection ends", "error", err, "not_logged_before", kept)
		}
	}
	c.cancel()
	c.nc.Close()
	writing.Wait()
	c.opens.Wait()
	c.detachAll()
	c.slots.close()
}

// detachAll leaves the windows of all channels to the next reader.
func (c *conn) detachAll() {
	c.mu.Lock()
	channels := c.channels
	c.channels = map[uint32]*channel{}
	for _, ch := range channels {
		ch.closed = true
	}
	c.mu.Unlock()
	for _, ch := range channels {
		if ch.window != nil {
			ch.window.Detach(ch)
		}
	}
}

// hello reads the first frame and answers it.
func (c *conn) hello(frames *frame.Reader) error {
	if err := c.nc.SetDeadline(time.Now().Add(HelloTimeout)); err != nil {
		return err
	}
	frames.LimitMeta(MaxHello)
	h, meta, err := frames.Next()
	if err != nil {
		return err
	}
	hello := new(pecanv1.DataHello)
	if h.Type != frame.Hello || proto.Unmarshal(meta, hello) != nil {
		return reason.New(reason.FrameCorrupt, "the first frame is a %v, not a hello", h.Type)
	}
	refusal := c.server.admit(hello)
	if refusal == nil {
		refusal = c.server.promote(c)
	}
	if refusal != nil {
		_, _ = c.nc.Write(frame.Append(nil, frame.Header{Type: frame.Error}, failureMeta(refusal)))
		return refusal
	}
	c.shared = hello.GetSharedMemory() && c.unix != nil && c.slots.limit > 0
	answer, err := proto.Marshal(&pecanv1.DataWelcome{
		WorkerId: c.server.identity.ID(), Version: c.server.options.Version, SharedMemory: c.shared})
	if err != nil {
		return err
	}
	if _, err := c.nc.Write(frame.Append(nil, frame.Header{Type: frame.Welcome}, answer)); err != nil {
		return err
	}
	frames.LimitMeta(MaxRequest)
	return c.nc.SetDeadline(time.Time{})
}

// admit refuses readers that look for another worker: a port may have passed from one worker to another.
func (s *Server) admit(hello *pecanv1.DataHello) *reason.Error {
	if want, cluster := hello.GetClusterId(), s.identity.Cluster(); want != "" && cluster != "" && want != cluster {
		return reason.New(reason.ClusterMismatch, "this worker belongs to cluster %s, not to %s", cluster, want)
	}
	if want := hello.GetWorkerId(); want != "" && want != s.identity.ID() {
		return reason.New(reason.WorkerUnknown, "this is worker %s, not %s", s.identity, want)
	}
	return nil
}

func (c *conn) read(frames *frame.Reader) error {
	for {
		h, meta, err := frames.Next()
		if err != nil {
			return err
		}
		c.lastFrame.Store(int64(time.Since(c.begun)))
		if err := c.handle(h, meta); err != nil {
			return err
		}
	}
}

func (c *conn) handle(h frame.Header, meta []byte) error {
	switch h.Type {
	case frame.Open:
		return c.open(h, meta)
	case frame.Credit:
		c.credit(h)
	case frame.Close:
		c.closeChannel(h.Channel)
	case frame.Release:
		if !c.slots.release(h.Index) {
			return reason.New(reason.FrameCorrupt, "release of slot %d, which is not in use", h.Index)
		}
	case frame.Ping:
		return c.push(frame.Append(nil, frame.Header{Type: frame.Pong}, nil))
	case frame.Pong:
	default:
		return reason.New(reason.FrameCorrupt, "a reader does not send %v frames", h.Type)
	}
	return nil
}

// open opens a channel, and searches its stream in the background. The stream may start later, and the reading goroutine
// must not wait for it.
func (c *conn) open(h frame.Header, meta []byte) error {
	request := new(pecanv1.OpenStream)
	if err := proto.Unmarshal(meta, request); err != nil || request.GetId() == nil || h.Channel == 0 {
		return reason.New(reason.FrameCorrupt, "an OPEN without a stream, for channel %d", h.Channel)
	}
	ch := &channel{conn: c, id: h.Channel, lease: request.GetLease(), sequence: c.server.opens.Add(1), credit: request.GetCredit(), wantsReady: request.GetCredit() == 0, remainder: request.GetRemainder(),
		checksum: request.GetPayloadChecksum() && c.unix == nil, compression: request.GetCompression()}
	c.mu.Lock()
	if c.channels[ch.id] != nil || len(c.channels) >= MaxChannels {
		c.mu.Unlock()
		return reason.New(reason.FrameCorrupt, "channel %d is open already, or too many are", ch.id)
	}
	c.channels[ch.id] = ch
	c.mu.Unlock()
	// The search ends with the channel. Otherwise each channel that is opened and closed at once would leave a
	// goroutine behind.
	ctx, giveUp := context.WithCancel(c.ctx)
	ch.giveUp = giveUp
	c.opens.Go(func() {
		defer giveUp()
		if refusal := c.server.streams.Attach(ctx, request, ch); refusal != nil {
			c.refuse(ch, refusal)
			return
		}
		c.attached(ch)
	})
	return nil
}

// attached lets the channel send, unless it was closed during the search for its stream.
func (c *conn) attached(ch *channel) {
	c.mu.Lock()
	closed, window := ch.closed, ch.window
	c.mu.Unlock()
	if closed {
		window.Detach(ch)
		return
	}
	ch.Wake()
}

func (c *conn) credit(h frame.Header) {
	c.mu.Lock()
	ch := c.channels[h.Channel]
	if ch == nil {
		// The channel was refused or has ended; the reader did not know yet.
		c.mu.Unlock()
		return
	}
	ch.credit = max(ch.credit, h.RawLen)
	ch.readySent = false
	window := ch.window
	c.mu.Unlock()
	if window != nil {
		window.Acknowledge(ch, h.Index)
		ch.Wake()
	}
}

func (c *conn) closeChannel(id uint32) {
	c.mu.Lock()
	ch := c.channels[id]
	delete(c.channels, id)
	var window *window.Window
	if ch != nil {
		ch.closed = true
		window = ch.window
	}
	c.mu.Unlock()
	if ch != nil {
		ch.giveUp()
	}
	if window != nil {
		window.Detach(ch)
	}
}

// refuse closes a channel from this side and sends the reason. A channel whose end was sent is only removed.
func (c *conn) refuse(ch *channel, why *reason.Error) {
	c.mu.Lock()
	known := c.channels[ch.id] == ch
	if known {
		delete(c.channels, ch.id)
		ch.closed = true
	}
	ended := ch.ended
	c.mu.Unlock()
	if known && !ended {
		_ = c.push(frame.Append(nil, frame.Header{Type: frame.Error, Channel: ch.id, Lease: ch.lease}, failureMeta(why)))
	}
}

// push queues a frame without payload.
func (c *conn) push(encoded []byte) error {
	c.mu.Lock()
	if len(c.control) >= maxControl {
		c.mu.Unlock()
		c.nc.Close()
		return fmt.Errorf("the peer has not read %d answers", maxControl)
	}
	c.control = append(c.control, encoded)
	c.mu.Unlock()
	c.wake()
	return nil
}

func (c *conn) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}
