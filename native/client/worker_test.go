package client

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/hostid"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// testStream describes the elements that a test worker sends for a stream.
type testStream struct {
	count uint64
	// perFrame is the number of elements in a block; 0 sends one element per frame without COLUMNS.
	perFrame uint64
	// pad is the size of a second component; 0 means none.
	pad int
	// text adds a string component.
	text   bool
	failAt map[uint64]bool
	// hold, if set, delays element holdAt, or the end if it is at holdAt, until the channel is closed.
	hold   chan struct{}
	holdAt uint64
}

// testWorker speaks the data plane over real sockets.
type testWorker struct {
	t       testing.TB
	id      string
	tcp     net.Listener
	unix    net.Listener
	hostID  string
	streams func(epoch uint64, stream uint32) (testStream, bool)
	// hook may change a frame before it is sent. It returns false to close the connection instead.
	hook func(h *frame.Header, meta *[]byte, payload *[]byte) bool
	// refuse makes OPEN fail.
	refuse func(*pecanv1.OpenStream) error
	snappy bool
	crc    bool
	// twice sends every DATA frame twice. swallow returns true for frames that the worker drops.
	twice   bool
	swallow func(h *frame.Header) bool

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	leases map[string]uint64
	wg     sync.WaitGroup
	opens  atomic.Int64
	// announced counts READY frames.
	announced atomic.Int64
	// accepted counts connections.
	accepted atomic.Int64
	slots    atomic.Int64
	// acked is the highest index that a CREDIT frame acknowledged, by stream.
	acked map[pecanv1.StreamKey]uint64
	// overrun is the largest number of bytes that were sent and not yet acknowledged by credits.
	sent atomic.Int64
}

func startWorker(t testing.TB, streams func(uint64, uint32) (testStream, bool), change ...func(*testWorker)) *testWorker {
	t.Helper()
	w := &testWorker{t: t, id: fmt.Sprintf("w-%d", time.Now().UnixNano()), streams: streams, conns: map[net.Conn]struct{}{}, leases: map[string]uint64{}, acked: map[pecanv1.StreamKey]uint64{}}
	for _, c := range change {
		c(w)
	}
	var err error
	if w.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.wg.Go(func() { w.serve(w.tcp) })
	t.Cleanup(w.stop)
	return w
}

// withUnix lets the worker offer shared memory.
func withUnix(w *testWorker) {
	listener, err := net.Listen("unix", "@pecan-test-"+w.id)
	if err != nil {
		w.t.Fatal(err)
	}
	w.unix = listener
	if w.hostID, err = hostid.Get(); err != nil {
		w.t.Fatal(err)
	}
	w.wg.Go(func() { w.serve(listener) })
}

func (w *testWorker) address() *pecanv1.WorkerAddress {
	a := &pecanv1.WorkerAddress{WorkerId: w.id, Tcp: w.tcp.Addr().String(), HostId: w.hostID}
	if w.unix != nil {
		a.Unix = w.unix.Addr().String()
	}
	return a
}

func (w *testWorker) stop() {
	_ = w.tcp.Close()
	if w.unix != nil {
		_ = w.unix.Close()
	}
	w.cut()
	w.wg.Wait()
}

// cut closes all connections.
func (w *testWorker) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}

func (w *testWorker) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		w.accepted.Add(1)
		w.mu.Lock()
		w.conns[c] = struct{}{}
		w.mu.Unlock()
		w.wg.Go(func() {
			newTestConn(w, c).run()
			w.mu.Lock()
			delete(w.conns, c)
			w.mu.Unlock()
		})
	}
}

// frameBytes returns the size of a frame of n elements without text.
func (s *testStream) frameBytes(n uint64) uint64 {
	if s.pad == 0 {
		return 8 * n
	}
	return (8*n+frame.Align-1)/frame.Align*frame.Align + uint64(s.pad)*n
}
