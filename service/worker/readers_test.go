package worker

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestCreditBoundsWhatIsSent(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("large")
	w.streams.Start(o)
	r := dialTCP(t, w)
	request := opening(o)
	request.Credit = 1
	r.open(1, request)
	size := uint64(9_600_000)
	for i := range uint64(5) {
		g, err := r.next()
		if err != nil || g.header.Index != i || g.header.RawLen != size {
			t.Fatalf("%v %v", g.header, err)
		}
		// A ping is answered in order, so no element was sent without credit before the pong.
		r.send(frame.Header{Type: frame.Ping}, nil)
		if h, _, err := r.frames.Next(); err != nil || h.Type != frame.Pong {
			t.Fatalf("%v came without credit: %v", h.Type, err)
		}
		r.credit(1, i+1, (i+1)*size+1)
	}
}

func TestAReturningReaderGetsUnacknowledgedElements(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	w.streams.Start(o)
	first := dialTCP(t, w)
	first.open(1, opening(o))
	if _, err := first.next(); err != nil {
		t.Fatal(err)
	}
	first.nc.Close()
	for _, start := range []uint64{0, 1, 17, 500, 999, 1000} {
		again := dialTCP(t, w)
		request := opening(o)
		request.StartIndex = start
		again.open(9, request)
		elements, _, end := again.stream(start)
		if end.Index != 1000 || uint64(len(elements)) != 1000-start {
			t.Fatalf("from %d: %d elements, end %d", start, len(elements), end.Index)
		}
		for i, element := range elements {
			if got := element[0].int64(t); got != int64(start)+int64(i) {
				t.Fatalf("from %d: element %d is %d", start, i, got)
			}
		}
		again.nc.Close()
	}
	if w.streams.Load().Produced != 1000 {
		t.Fatal("the stream was run again though its elements were held")
	}
}

func TestARequestBelowTheWindowRunsTheStreamAgain(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	w.streams.Start(o)
	r := dialTCP(t, w)
	request := opening(o)
	request.StartIndex = 900
	r.open(1, request)
	if elements, _, _ := r.stream(900); len(elements) != 100 || elements[0][0].int64(t) != 900 {
		t.Fatalf("%d elements", len(elements))
	}
	r.credit(1, 1000, 1<<40)
	r.send(frame.Header{Type: frame.Close, Channel: 1}, nil)
	request.StartIndex = 5
	r.open(2, request)
	if elements, _, _ := r.stream(5); len(elements) != 995 || elements[0][0].int64(t) != 5 {
		t.Fatalf("%d elements", len(elements))
	}
}

// Another run would produce other elements. The dispatcher decides what happens to the stream.
func TestARequestBelowTheWindowOfANondeterministicStreamIsReportedToTheDispatcher(t *testing.T) {
	c := newCommander()
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	o := startCommand("thousand")
	o.Plan.Determinism = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
	o.Options.Mode = pecanv1.Mode_MODE_AT_LEAST_ONCE
	c.start(o)
	waitFor(t, "the stream", func() bool { return len(w.streams.HeldStreams()) == 1 })
	r := dialTCP(t, w)
	r.open(1, opening(o))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatalf("%d elements", len(elements))
	}
	r.credit(1, 600, 1<<40)
	r.send(frame.Header{Type: frame.Close, Channel: 1}, nil)

	// Elements that are still held go to the next reader.
	request := opening(o)
	request.StartIndex = 600
	r.open(2, request)
	if elements, _, _ := r.stream(600); len(elements) != 400 || elements[0][0].int64(t) != 600 {
		t.Fatalf("%d elements", len(elements))
	}
	r.credit(2, 1000, 1<<40)
	r.send(frame.Header{Type: frame.Close, Channel: 2}, nil)

	request.StartIndex = 5
	r.open(3, request)
	if refused, err := r.next(); err != nil || refused.failure == nil || refused.failure.Reason != reason.StaleLease {
		t.Fatalf("%+v, %v", refused, err)
	}
	failed := await(t, c, "the report that elements are below the window", func(m *pecanv1.WorkerMessage) (*pecanv1.StreamFailed, bool) {
		return m.GetFailed(), m.GetFailed() != nil
	})
	if !failed.GetBelowWindow() || failed.GetLease() != o.GetLease() {
		t.Errorf("reported %v", failed)
	}
	// The stream is refused until it has a new lease.
	request.StartIndex = 1000
	r.open(4, request)
	if refused, err := r.next(); err != nil || refused.failure == nil || refused.failure.Reason != reason.StaleLease {
		t.Fatalf("%+v, %v", refused, err)
	}
	again := proto.CloneOf(o)
	again.Lease++
	c.start(again)
	waitFor(t, "the new lease", func() bool { return w.streams.HeldStreams()[0].GetLease() == again.Lease })
	r.open(5, opening(again))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatalf("%d elements under the new lease", len(elements))
	}
}

func TestTheNewestReaderOfAStreamWins(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("starved")
	w.streams.Start(o)
	first, second := dialTCP(t, w), dialTCP(t, w)
	first.open(1, opening(o))
	if _, err := first.next(); err != nil {
		t.Fatal(err)
	}
	second.open(1, opening(o))
	if g, err := second.next(); err != nil || len(g.elements) != 1 {
		t.Fatal(g, err)
	}
	if g, err := first.next(); err != nil || g.failure == nil || g.failure.Reason != reason.Closed {
		t.Fatal(g, err)
	}
}

// An OPEN may wait for its stream. Several that waited for the same stream wake in any order, and the reader of
// an older one may have disconnected.
func TestTheNewestReaderWinsOfThoseThatWaited(t *testing.T) {
	w := startWorker(t, nil)
	for stream := range uint32(20) {
		o := startCommand("thousand")
		o.Id.Stream = stream
		first, second := dialTCP(t, w), dialTCP(t, w)
		for _, r := range []*reader{first, second} {
			r.open(1, opening(o))
			r.handled()
		}
		w.streams.Start(o)
		if elements, _, _ := second.stream(0); len(elements) != 1000 {
			t.Fatalf("%d elements", len(elements))
		}
		for {
			g, err := first.next()
			if err != nil {
				t.Fatal(err)
			}
			if g.failure != nil {
				if g.failure.Reason != reason.Closed {
					t.Fatal(g.failure)
				}
				break
			}
		}
	}
}

func TestReadersOfAnOldLeaseAreRefused(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	w.streams.Start(o)
	r := dialTCP(t, w)
	old := opening(o)
	old.Lease = 6
	r.open(1, old)
	if g, err := r.next(); err != nil || g.failure == nil || g.failure.Reason != reason.StaleLease {
		t.Fatal(g, err)
	}
	// The reader may learn of a lease before the worker does.
	newer := opening(o)
	newer.Lease = 8
	r.open(2, newer)
	raised := startCommand("thousand")
	raised.Lease = 8
	w.streams.Start(raised)
	if g, err := r.next(); err != nil || len(g.elements) == 0 || g.header.Lease != 8 {
		t.Fatal(g, err)
	}
	w.streams.Stop(&pecanv1.StopStream{Id: o.GetId(), Lease: 7})
	if len(w.streams.HeldStreams()) != 1 {
		t.Fatal("an old stop took a newer lease away")
	}
	w.streams.Stop(&pecanv1.StopStream{Id: o.GetId(), Lease: 8})
	for {
		g, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if g.failure != nil {
			if g.failure.Reason != reason.StreamUnknown {
				t.Fatal(g.failure)
			}
			break
		}
		if g.header.Type == frame.End {
			break
		}
	}
	if len(w.streams.HeldStreams()) != 0 {
		t.Fatal("the stream is still held")
	}
}

func TestAPrefetchedStreamProducesOneElementUntilItIsOpened(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	o.Prefetch = true
	w.streams.Start(o)
	made := func() uint64 { return w.streams.Loads()[0].GetProduced() }
	r := dialTCP(t, w)
	waitFor(t, "the first element", func() bool { return made() > 0 })
	r.send(frame.Header{Type: frame.Ping}, nil)
	if _, _, err := r.frames.Next(); err != nil {
		t.Fatal(err)
	}
	if n := made(); n != 1 {
		t.Fatalf("%d elements were made", n)
	}
	r.open(1, opening(o))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatal(len(elements))
	}
}
