package client

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/transport"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestElementsArriveOnceWhateverTheConnectionDoes(t *testing.T) {
	for name, tc := range map[string]struct {
		change []func(*testWorker)
		// hook injects the fault at the n-th DATA frame of the worker.
		hook func(n int64, h *frame.Header, meta, payload *[]byte) bool
		dups bool
	}{
		"it breaks between two frames": {hook: func(n int64, _ *frame.Header, _, _ *[]byte) bool { return n%10 != 9 }},
		"it breaks within a payload": {hook: func(n int64, h *frame.Header, _, payload *[]byte) bool {
			if n%10 == 9 {
				*payload = (*payload)[:len(*payload)/2]
				h.Channel |= 1 << 31
			}
			return true
		}},
		"a frame comes twice, the second late": {hook: func(n int64, h *frame.Header, _, _ *[]byte) bool { return true }, dups: true},
		"shared memory, and it breaks":         {change: []func(*testWorker){withUnix}, hook: func(n int64, _ *frame.Header, _, _ *[]byte) bool { return n%10 != 9 }},
		"an element is left out": {hook: func(n int64, h *frame.Header, _, _ *[]byte) bool {
			if n == 5 {
				h.Index += 3
			}
			return true
		}},
		"a frame of a newer lease": {hook: func(n int64, h *frame.Header, _, _ *[]byte) bool {
			if n == 5 {
				h.Lease++
			}
			return true
		}},
		"a payload that is not what its checksum says": {change: []func(*testWorker){func(w *testWorker) { w.crc = true }}, hook: func(n int64, _ *frame.Header, _, payload *[]byte) bool {
			if n == 5 {
				(*payload)[0]++
			}
			return true
		}},
		"a compressed payload that lies about its length": {change: []func(*testWorker){func(w *testWorker) { w.snappy = true }}, hook: func(n int64, h *frame.Header, _, payload *[]byte) bool {
			if n == 5 {
				*payload = append(binary.AppendUvarint(nil, 1<<31), (*payload)[1:]...)
				h.PayloadLen = uint64(len(*payload))
			}
			return true
		}},
		"a table that says more than there is": {hook: func(n int64, h *frame.Header, meta, _ *[]byte) bool {
			if n == 5 {
				binary.LittleEndian.PutUint64((*meta)[16:], 1<<40)
			}
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var frames atomic.Int64
			change := append(tc.change, func(w *testWorker) {
				w.hook = func(h *frame.Header, meta, payload *[]byte) bool {
					if h.Type != frame.Data {
						return true
					}
					return tc.hook(frames.Add(1), h, meta, payload)
				}
				w.twice = tc.dups
			})
			w := startWorker(t, same(testStream{count: 60, perFrame: 2, pad: 50, text: true}), change...)
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
			d.updateOf = spread(2, w)
			it := open(t, d).Open(IterOptions{})
			all, err := read(t, it)
			if err != nil {
				t.Fatal(err)
			}
			wantAll(t, all, 60, 60)
			stats := it.Stats()
			if tc.dups && stats.Duplicates == 0 {
				t.Error("no duplicate was counted")
			}
			if !tc.dups && w.opens.Load() <= 2 {
				t.Error("nothing was opened again: the fault did not happen")
			}
		})
	}
}

func TestANewLeaseMovesAStreamWithoutLossOrRepetition(t *testing.T) {
	hold := make(chan struct{})
	old := startWorker(t, same(testStream{count: 100, perFrame: 5, hold: hold, holdAt: 40}))
	t.Cleanup(func() { close(hold) })
	fresh := startWorker(t, same(testStream{count: 100, perFrame: 7}))
	d := startDispatcher(t)
	lease, worker := uint64(3), old
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Assignment: 1, Lease: lease, WorkerNumber: numberOf(worker.address())}}}
	}
	it := open(t, d).Open(IterOptions{})
	first, err := readUpTo(t, it, 40)
	if err != nil {
		t.Fatal(err)
	}
	d.update(func() { lease, worker = 4, fresh })
	rest, err := readUpTo(t, it, 20)
	if err != nil {
		t.Fatal(err)
	}
	// The client ignores an update with an older lease.
	d.update(func() { lease, worker = 3, old })
	last, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(append(first, rest...), last...), 100)
	eventually(t, "the end is reported under the newest lease", func() bool {
		return look(d, func() bool { return len(d.finished) == 1 && d.finished[0].GetLease() == 4 })
	})
}

func TestAWorkerThatCannotBeReachedIsReportedAndReplaced(t *testing.T) {
	stopped := startWorker(t, same(testStream{count: 10}))
	stopped.stop()
	good := startWorker(t, same(testStream{count: 10}))
	d := startDispatcher(t)
	d.updateOf = spread(1, stopped)
	it := open(t, d).Open(IterOptions{})
	eventually(t, "the worker is reported", func() bool {
		_, status, _ := it.NextElement(time.Millisecond)
		return status == NotYet && look(d, func() bool { return len(d.reported) > 0 && d.reported[0].GetWorkerId() == stopped.id })
	})
	if why := waiting(it); !strings.Contains(why, stopped.id) {
		t.Errorf("waiting: %q", why)
	}
	d.update(func() {
		d.updateOf = func(uint64) *pecanv1.EpochUpdate {
			return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Assignment: 1, Lease: 2, WorkerNumber: numberOf(good.address())}}}
		}
	})
	all, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, all, 10)
}

func TestAnotherWorkerAtTheAddressIsRefused(t *testing.T) {
	w := startWorker(t, same(testStream{count: 10}))
	d := startDispatcher(t)
	wrong := true
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		address := proto.Clone(w.address()).(*pecanv1.WorkerAddress)
		if wrong {
			address.WorkerId = "somebody-else"
		}
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Assignment: 1, Lease: 1, WorkerNumber: numberOf(address)}}}
	}
	it := open(t, d).Open(IterOptions{})
	eventually(t, "the worker is reported", func() bool { return look(d, func() bool { return len(d.reported) > 0 }) })
	if w.opens.Load() != 0 {
		t.Error("a stream was opened at the wrong worker")
	}
	d.update(func() { wrong = false })
	if all, err := read(t, it); err != nil || len(all) != 10 {
		t.Errorf("%d elements, %v", len(all), err)
	}
}

func TestTemporaryRefusalsAreRetried(t *testing.T) {
	var refusals atomic.Int64
	w := startWorker(t, same(testStream{count: 10}), func(w *testWorker) {
		w.refuse = func(*pecanv1.OpenStream) error {
			switch refusals.Add(1) {
			case 1:
				return reason.New(reason.StreamUnknown, "not started yet")
			case 2:
				return reason.New(reason.StaleLease, "another lease")
			case 3:
				return reason.New(reason.FileNotVisible, "no file")
			}
			return nil
		}
	})
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	all, err := read(t, open(t, d).Open(IterOptions{}))
	if err != nil || len(all) != 10 || refusals.Load() != 4 {
		t.Errorf("%d elements after %d tries, %v", len(all), refusals.Load(), err)
	}
}

func TestReadingContinuesWhileTheDispatcherIsAway(t *testing.T) {
	hold := make(chan struct{})
	w := startWorker(t, same(testStream{count: 50, perFrame: 2, hold: hold, holdAt: 20}))
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	it := open(t, d).Open(IterOptions{Timeout: 50 * time.Millisecond})
	first, err := readUpTo(t, it, 20)
	if err != nil {
		t.Fatal(err)
	}
	d.stop()
	eventually(t, "the client notices", func() bool { away, _ := it.job.session.link.Away(); return away > 100*time.Millisecond })
	// The worker is connected and may be computing. That is not an outage.
	if _, status, err := it.NextElement(time.Millisecond); status != NotYet {
		t.Fatalf("%v, %v", status, err)
	}
	if why := waiting(it); !strings.Contains(why, "has not answered") {
		t.Errorf("waiting: %q", why)
	}
	close(hold)
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(first, rest...), 50)
	if n := look(d, func() int { return len(d.finished) }); n != 0 {
		t.Fatalf("%d reports reached a dispatcher that is away", n)
	}
	d.listen(d.addr)
	eventually(t, "the end is reported when it is back", func() bool { return look(d, func() bool { return len(d.finished) == 1 && len(d.closed) == 1 }) })
}

func TestAnUnknownJobIsATypedError(t *testing.T) {
	hold := make(chan struct{})
	w := startWorker(t, same(testStream{count: 50, hold: hold, holdAt: 5}))
	t.Cleanup(func() { close(hold) })
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	job := open(t, d)
	it := job.Open(IterOptions{})
	if _, err := readUpTo(t, it, 5); err != nil {
		t.Fatal(err)
	}
	d.update(func() { d.forget, d.jobs = true, map[string]string{} })
	_, err := read(t, it)
	if !reason.Is(err, reason.JobUnknown) || !strings.Contains(err.Error(), "--work-dir") && !strings.Contains(err.Error(), "work directory") {
		t.Errorf("got %v", err)
	}
	if _, status, err := job.Open(IterOptions{}).NextElement(0); status != Broken || !reason.Is(err, reason.JobUnknown) {
		t.Errorf("a new pass: %v, %v", status, err)
	}
}

func TestAnExpiredClientContinuesWhileItsJobExists(t *testing.T) {
	hold := make(chan struct{})
	w := startWorker(t, same(testStream{count: 50, hold: hold, holdAt: 5}))
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	it := open(t, d).Open(IterOptions{})
	first, err := readUpTo(t, it, 5)
	if err != nil {
		t.Fatal(err)
	}
	// The request's id identifies the same job.
	d.update(func() { d.forget = true })
	eventually(t, "the client asks for its job", func() bool { return look(d, func() int { return d.asked }) > 1 })
	d.update(func() { d.forget = false })
	close(hold)
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(first, rest...), 50)
}

func TestUnavailableSharedMemoryIsATypedError(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"the worker is on another host": func(c *Config) { c.HostID = "elsewhere" },
		"the host has no name":          func(c *Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t)
			d.updateOf = spread(1, startWorker(t, same(testStream{count: 5})))
			it := open(t, d, change).Open(IterOptions{Protocol: transport.SHM})
			_, err := read(t, it)
			if !reason.Is(err, reason.Unsupported) || !strings.Contains(err.Error(), "shm") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTheConnectionToASilentWorkerEnds(t *testing.T) {
	var mute atomic.Bool
	w := startWorker(t, same(testStream{count: 50, perFrame: 5}), func(w *testWorker) {
		w.swallow = func(h *frame.Header) bool { return mute.Load() }
	})
	hold := make(chan struct{})
	w.streams = same(testStream{count: 50, perFrame: 5, hold: hold, holdAt: 25})
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	it := open(t, d, func(c *Config) { c.pingAfter = 30 * time.Millisecond }).Open(IterOptions{})
	first, err := readUpTo(t, it, 25)
	if err != nil {
		t.Fatal(err)
	}
	// From here on the worker sends nothing and the connection stays open, as if the host had lost power.
	mute.Store(true)
	close(hold)
	eventually(t, "the connection is given up", func() bool { return w.accepted.Load() > 1 })
	eventually(t, "the dispatcher hears of it", func() bool { return look(d, func() bool { return len(d.reported) > 0 }) })
	if message := look(d, func() string { return d.reported[0].GetMessage() }); !strings.Contains(message, "silent") {
		t.Errorf("it hears first of a try after that: %s", message)
	}
	mute.Store(false)
	w.cut()
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(first, rest...), 50)
}

// heldClose is a connection that closes slowly. From begin until it has closed, a new stream of the worker gets an ended connection.
type heldClose struct {
	net.Conn
	begin func()
	held  chan struct{}
}

func (c *heldClose) Close() error {
	c.begin()
	<-c.held
	return c.Conn.Close()
}

func TestAStreamIsTriedAgainWhenItsConnectionEndedBeforeItWasUsed(t *testing.T) {
	w := startWorker(t, same(testStream{count: 20}))
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	held, begun := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	begin := sync.OnceFunc(func() { close(begun) })
	job := open(t, d, func(c *Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			link, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil && address == w.address().GetTcp() {
				link = &heldClose{link, begin, held}
			}
			return link, err
		}
	})
	if _, err := read(t, job.Open(IterOptions{NoPrefetch: true})); err != nil {
		t.Fatal(err)
	}
	// The session closes at the end of the test, and waits for its connections.
	t.Cleanup(release)
	w.cut()
	<-begun
	it := job.Open(IterOptions{NoPrefetch: true})
	eventually(t, "the stream met it", func() bool {
		streams := it.epoch().State().Streams
		return len(streams) == 1 && streams[0].Failures > 0 && !streams[0].Open
	})
	release()
	all, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, all, 20)
}
