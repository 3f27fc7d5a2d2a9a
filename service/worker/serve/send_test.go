package serve

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/service/worker/payload"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// leftMeanwhile is the body of an element whose stream is closed as soon as its frame is read. Its memory is
// cleared on release, as TensorFlow's is freed.
type leftMeanwhile struct {
	memory []byte
	leave  func()
}

func (l *leftMeanwhile) Frame(int) payload.Parts {
	l.leave()
	return payload.Parts{Components: 1, Buffers: [][]byte{l.memory}, Raw: uint64(len(l.memory))}
}

func (l *leftMeanwhile) Release() { clear(l.memory) }

func TestAnElementIsHeldUntilItIsInItsSlotWhenItsStreamIsClosed(t *testing.T) {
	ours, theirs := unixPair(t)
	c := newConn(&Server{log: slog.New(slog.DiscardHandler), options: Options{SlotBytes: 1 << 30}, ctx: t.Context()}, ours)
	c.shared = true
	defer c.slots.close()

	var all atomic.Int64
	ready := window.New(&all, nil, window.Start{})
	body := &leftMeanwhile{memory: make([]byte, 2*minSlot), leave: func() { ready.Close() }}
	for i := range body.memory {
		body.memory[i] = 7
	}
	ready.Append(window.NewEntry(0, 1, int64(len(body.memory)), body))
	ch := &channel{conn: c, id: 1}
	if _, ok := ready.Attach(ch, 0); !ok {
		t.Fatal("the window takes no reader")
	}

	var b writeBatch
	if _, err := c.gatherChannel(&b, ch, ready, 1); err != nil {
		t.Fatal(err)
	}
	if len(c.slots.all) != 1 {
		t.Fatalf("%d slots, not one: the element went another way", len(c.slots.all))
	}
	for _, s := range c.slots.all {
		for i := range body.memory {
			if s.memory[i] != 7 {
				t.Fatalf("byte %d of the slot is %d: the element was let go of before it was copied", i, s.memory[i])
			}
		}
	}
	if err := c.flush(&b); err != nil {
		t.Fatal(err)
	}
	if body.memory[0] != 0 {
		t.Error("the element is held after it was sent")
	}
	if h, _, err := frame.NewReader(theirs).Next(); err != nil || h.Type != frame.Slot {
		t.Errorf("the reader received frame %v instead of SLOT: %v", h.Type, err)
	}
}

func unixPair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socketpair")
		ends[i], err = net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// A connection ends while its stream still produces elements.
func TestAConnectionEndsWhileItsStreamsGoOn(t *testing.T) {
	for range 300 {
		ours, theirs := unixPair(t)
		c := newConn(&Server{log: slog.New(slog.DiscardHandler), ctx: t.Context()}, ours)
		var all atomic.Int64
		ready := window.New(&all, nil, window.Start{})
		ch := &channel{conn: c, id: 1}
		c.channels[ch.id] = ch
		ch.Bind(ready)
		ready.Attach(ch, 0)
		var making sync.WaitGroup
		making.Go(func() {
			for i := range uint64(20) {
				ready.Append(window.NewEntry(i, 1, 1, nil))
			}
		})
		c.detachAll()
		making.Wait()
		if old, _ := ready.Attach(ch, 0); old != nil {
			t.Fatal("the stream has a reader still")
		}
		ours.Close()
		theirs.Close()
	}
}

// plain is the body of an element.
type plain []byte

func (p plain) Frame(int) payload.Parts {
	return payload.Parts{Components: 1, Buffers: [][]byte{p}, Raw: uint64(len(p))}
}

func (p plain) Release() {}

func TestAChannelWithoutCreditAnnouncesEachFrameOnce(t *testing.T) {
	ours, theirs := unixPair(t)
	defer func() { _ = theirs.Close() }()
	c := newConn(&Server{log: slog.New(slog.DiscardHandler), ctx: t.Context()}, ours)
	var all atomic.Int64
	ready := window.New(&all, nil, window.Start{})
	defer ready.Close()
	for i := range uint64(2) {
		ready.Append(window.NewEntry(i, 1, 100, plain(make([]byte, 100+i))))
	}
	ch := &channel{conn: c, id: 7, wantsReady: true, window: ready}
	c.channels[ch.id] = ch
	if _, ok := ready.Attach(ch, 0); !ok {
		t.Fatal("the window takes no reader")
	}
	// gather returns the headers of the frames that are sent now.
	gather := func() (sent []frame.Header) {
		var b writeBatch
		defer b.release()
		for again := true; again; {
			var err error
			if again, err = c.gatherChannel(&b, ch, ready, ch.credit); err != nil {
				t.Fatal(err)
			}
		}
		for _, piece := range b.buffers {
			if h, _, err := frame.NewReader(bytes.NewReader(piece)).Next(); err == nil {
				sent = append(sent, h)
			}
		}
		return sent
	}
	is := func(h frame.Header, typ frame.Type, raw uint64) bool {
		return h.Type == typ && h.Channel == 7 && h.RawLen == raw
	}
	if sent := gather(); len(sent) != 1 || !is(sent[0], frame.Ready, 100) {
		t.Fatalf("sent %v", sent)
	}
	if sent := gather(); len(sent) != 0 {
		t.Fatalf("sent %v again", sent)
	}
	c.credit(frame.Header{Type: frame.Credit, Channel: 7, RawLen: 100})
	if sent := gather(); len(sent) != 2 || !is(sent[0], frame.Data, 100) || !is(sent[1], frame.Ready, 101) {
		t.Fatalf("sent %v", sent)
	}
}
