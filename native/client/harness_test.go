package client

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/hostid"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const testDeadline = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// value is element i of a stream in tests: it tells where it belongs.
func value(epoch uint64, stream uint32, i uint64) int64 {
	return int64(epoch)<<48 | int64(stream)<<32 | int64(i)
}

// testStream is what a test worker sends for one stream.
type testStream struct {
	count uint64
	// perFrame elements travel as a block; 0 sends one element per frame without BLOCK.
	perFrame uint64
	// pad is a second component of that many bytes when above 0.
	pad int
	// text adds a string component.
	text   bool
	failAt map[uint64]bool
	// hold, when set, is waited for before element holdAt is sent.
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
	// hook may change what is sent; it returns false to cut the connection instead.
	hook func(h *frame.Header, meta *[]byte, payload *[]byte) bool
	// refuse makes OPEN fail.
	refuse func(*pecanv1.OpenStream) error
	snappy bool
	crc    bool
	// twice sends every DATA frame twice. swallow sends nothing when it says so.
	twice   bool
	swallow func(h *frame.Header) bool

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	leases map[string]uint64
	wg     sync.WaitGroup
	opens  atomic.Int64
	// accepted counts connections.
	accepted atomic.Int64
	slots    atomic.Int64
	// acked is the highest index that CREDIT told, by stream.
	acked map[string]uint64
	// overrun is the largest number of bytes that were sent and not taken, as the credits tell.
	sent atomic.Int64
}

func startWorker(t testing.TB, streams func(uint64, uint32) (testStream, bool), change ...func(*testWorker)) *testWorker {
	t.Helper()
	w := &testWorker{t: t, id: fmt.Sprintf("w-%d", time.Now().UnixNano()), streams: streams, conns: map[net.Conn]struct{}{}, leases: map[string]uint64{}, acked: map[string]uint64{}}
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

type testSlot struct {
	mem  []byte
	busy bool
}

type testChannel struct {
	open   *pecanv1.OpenStream
	credit uint64
	sent   uint64
	closed bool
}

type testConn struct {
	w        *testWorker
	c        net.Conn
	shared   bool
	mu       sync.Mutex
	cond     *sync.Cond
	writeMu  sync.Mutex
	channels map[uint32]*testChannel
	slots    []*testSlot
	dead     bool
}

func newTestConn(w *testWorker, c net.Conn) *testConn {
	tc := &testConn{w: w, c: c, channels: map[uint32]*testChannel{}}
	tc.cond = sync.NewCond(&tc.mu)
	return tc
}

func (tc *testConn) run() {
	var wg sync.WaitGroup
	defer func() {
		_ = tc.c.Close()
		tc.mu.Lock()
		tc.dead = true
		tc.cond.Broadcast()
		tc.mu.Unlock()
		wg.Wait()
		for _, s := range tc.slots {
			_ = unix.Munmap(s.mem)
			tc.w.slots.Add(-1)
		}
	}()
	r := frame.NewReader(tc.c)
	for {
		h, meta, err := r.Next()
		if err != nil {
			return
		}
		switch h.Type {
		case frame.Hello:
			var hello pecanv1.DataHello
			_ = proto.Unmarshal(meta, &hello)
			tc.shared = hello.GetSharedMemory()
			welcome, _ := proto.Marshal(&pecanv1.DataWelcome{WorkerId: tc.w.id, SharedMemory: tc.shared})
			tc.write(frame.Header{Type: frame.Welcome}, welcome, nil, -1)
		case frame.Open:
			tc.w.opens.Add(1)
			open := &pecanv1.OpenStream{}
			_ = proto.Unmarshal(meta, open)
			if tc.w.refuse != nil {
				if err := tc.w.refuse(open); err != nil {
					detail, _ := proto.Marshal(reason.From(err).Detail())
					tc.write(frame.Header{Type: frame.Error, Channel: h.Channel, Lease: h.Lease}, detail, nil, -1)
					continue
				}
			}
			ch := &testChannel{open: open, credit: open.GetCredit()}
			tc.mu.Lock()
			tc.channels[h.Channel] = ch
			tc.mu.Unlock()
			wg.Go(func() { tc.stream(h.Channel, ch) })
		case frame.Credit:
			tc.mu.Lock()
			if ch := tc.channels[h.Channel]; ch != nil {
				ch.credit = h.RawLen
				tc.w.mu.Lock()
				tc.w.acked[ch.open.GetId().String()] = h.Index
				tc.w.mu.Unlock()
			}
			tc.cond.Broadcast()
			tc.mu.Unlock()
		case frame.Close:
			tc.mu.Lock()
			if ch := tc.channels[h.Channel]; ch != nil {
				ch.closed = true
				delete(tc.channels, h.Channel)
			}
			tc.cond.Broadcast()
			tc.mu.Unlock()
		case frame.Release:
			tc.mu.Lock()
			tc.slots[h.Index].busy = false
			tc.mu.Unlock()
		case frame.Ping:
			tc.write(frame.Header{Type: frame.Pong}, nil, nil, -1)
		}
	}
}

// stream sends one stream until it ends or is closed.
func (tc *testConn) stream(number uint32, ch *testChannel) {
	id := ch.open.GetId()
	s, ok := tc.w.streams(id.GetEpoch(), id.GetStream())
	if !ok {
		detail, _ := proto.Marshal(reason.New(reason.StreamUnknown, "no such stream").Detail())
		tc.write(frame.Header{Type: frame.Error, Channel: number}, detail, nil, -1)
		return
	}
	for i := ch.open.GetStartIndex(); i < s.count; {
		n := uint64(1)
		for n < s.perFrame && i+n < s.count && !s.failAt[i+n] {
			n++
		}
		if s.hold != nil && i+n > s.holdAt {
			<-s.hold
		}
		tc.mu.Lock()
		for !ch.closed && !tc.dead && ch.sent >= ch.credit {
			tc.cond.Wait()
		}
		stop := ch.closed || tc.dead
		tc.mu.Unlock()
		if stop {
			return
		}
		if s.failAt[i] {
			detail, _ := proto.Marshal(reason.New(reason.ElementFailed, "element %d failed", i).Detail())
			if !tc.write(frame.Header{Type: frame.Error, Flags: frame.Element, Channel: number, Index: i, Lease: ch.open.GetLease()}, detail, nil, -1) {
				return
			}
			i++
			continue
		}
		raw, ok := tc.data(number, ch, id, &s, i, n)
		if !ok {
			return
		}
		tc.mu.Lock()
		ch.sent += raw
		if tc.w.twice {
			ch.sent += raw
		}
		tc.mu.Unlock()
		tc.w.sent.Add(int64(raw))
		i += n
	}
	tc.write(frame.Header{Type: frame.End, Channel: number, Index: s.count, Lease: ch.open.GetLease()}, nil, nil, -1)
}

func (tc *testConn) data(number uint32, ch *testChannel, id *pecanv1.StreamId, s *testStream, i, n uint64) (uint64, bool) {
	table := &frame.Table{Components: 1, Rows: []frame.Tensor{{DType: 9, Bytes: 8 * n}}}
	payload := make([]byte, 8*n)
	for k := range n {
		binary.LittleEndian.PutUint64(payload[k*8:], uint64(value(id.GetEpoch(), id.GetStream(), i+k)))
	}
	grow := func() {
		if rest := len(payload) % frame.Align; rest != 0 {
			payload = append(payload, make([]byte, frame.Align-rest)...)
		}
	}
	if s.pad > 0 {
		grow()
		table.Components++
		table.Rows = append(table.Rows, frame.Tensor{DType: 4, Dims: []uint64{uint64(s.pad)}, Bytes: uint64(s.pad) * n})
		for k := range n {
			for range s.pad {
				payload = append(payload, byte(i+k))
			}
		}
	}
	if s.text {
		grow()
		table.Components++
		var lengths, text []byte
		for k := range n {
			word := fmt.Sprintf("text %d", i+k)
			lengths = binary.LittleEndian.AppendUint64(lengths, uint64(len(word)))
			text = append(text, word...)
		}
		table.Rows = append(table.Rows, frame.Tensor{DType: frame.DTString, Bytes: uint64(len(lengths) + len(text))})
		payload = append(append(payload, lengths...), text...)
	}
	h := frame.Header{Type: frame.Data, Channel: number, Count: uint32(n), Index: i, Lease: ch.open.GetLease(), RawLen: uint64(len(payload))}
	if s.perFrame > 0 {
		h.Flags |= frame.Block
	}
	raw := h.RawLen
	if tc.shared {
		slot, at := tc.slotFor(len(payload))
		copy(slot.mem, payload)
		h.Flags |= frame.Shared
		table.Slot = uint64(at)
		return raw, tc.write(h, frame.AppendTable(nil, h.Flags, table), nil, -1)
	}
	if tc.w.snappy {
		payload = snappy.Encode(nil, payload)
		h.Flags |= frame.Snappy
	}
	if tc.w.crc {
		h.Flags |= frame.Checksum
		h.PayloadCRC = crc32.Checksum(payload, frame.Castagnoli)
	}
	h.PayloadLen = uint64(len(payload))
	return raw, tc.write(h, frame.AppendTable(nil, h.Flags, table), payload, -1)
}

// slotFor finds a free slot or announces a new one.
func (tc *testConn) slotFor(n int) (*testSlot, int) {
	tc.mu.Lock()
	for at, s := range tc.slots {
		if !s.busy && len(s.mem) >= n {
			s.busy = true
			tc.mu.Unlock()
			return s, at
		}
	}
	fd, err := unix.MemfdCreate("pecan-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		panic(err)
	}
	size := max(n, 4096)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		panic(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		panic(err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	s := &testSlot{mem: mem, busy: true}
	tc.slots = append(tc.slots, s)
	at := len(tc.slots) - 1
	tc.w.slots.Add(1)
	tc.mu.Unlock()
	tc.write(frame.Header{Type: frame.Slot, Index: uint64(at), RawLen: uint64(size)}, nil, nil, fd)
	_ = unix.Close(fd)
	return s, at
}

func (tc *testConn) write(h frame.Header, meta, payload []byte, fd int) bool {
	tc.writeMu.Lock()
	defer tc.writeMu.Unlock()
	if tc.w.hook != nil && !tc.w.hook(&h, &meta, &payload) {
		_ = tc.c.Close()
		return false
	}
	if fd >= 0 {
		_, _, err := tc.c.(*net.UnixConn).WriteMsgUnix(frame.Append(nil, h, meta), unix.UnixRights(fd), nil)
		return err == nil
	}
	if tc.w.swallow != nil && tc.w.swallow(&h) {
		return true
	}
	for range map[bool]int{true: 2, false: 1}[tc.w.twice && h.Type == frame.Data] {
		buffers := net.Buffers{frame.Append(nil, h, meta), payload}
		if _, err := buffers.WriteTo(tc.c); err != nil {
			return false
		}
		if h.Type == frame.Data && uint64(len(payload)) < h.PayloadLen {
			_ = tc.c.Close()
			return false
		}
	}
	return true
}

// testDispatcher answers as a dispatcher that a test scripts.
type testDispatcher struct {
	pecanv1.UnimplementedDispatcherServer
	t      testing.TB
	server *grpc.Server
	addr   string

	mu sync.Mutex
	// plan and options of every job.
	plan    *pecanv1.Plan
	options *pecanv1.JobOptions
	// snapshot makes the update of an epoch.
	snapshot func(epoch uint64) *pecanv1.EpochUpdate
	version  uint64
	changed  chan struct{}
	epochs   uint64
	opened   []*pecanv1.OpenEpochRequest
	closed   []uint64
	finished []*pecanv1.FinishStreamRequest
	released []*pecanv1.ReleaseStreamRequest
	reported []*pecanv1.ReportWorkerRequest
	beats    []*pecanv1.ClientHeartbeatRequest
	uploads  [][]byte
	goodbyes int
	jobs     map[string]string
	// forget makes the dispatcher a stranger to the client, as after a restart without a work directory.
	forget bool
	// delivered: others had every epoch.
	delivered bool
}

func startDispatcher(t testing.TB, change ...func(*testDispatcher)) *testDispatcher {
	t.Helper()
	d := &testDispatcher{t: t, plan: &pecanv1.Plan{NumStreams: 1, Repeat: 1, Cardinality: -2, AssertedCardinality: -2, Hash: "h"}, options: &pecanv1.JobOptions{}, changed: make(chan struct{}), jobs: map[string]string{}}
	for _, c := range change {
		c(d)
	}
	d.listen("127.0.0.1:0")
	t.Cleanup(d.stop)
	return d
}

func (d *testDispatcher) listen(addr string) {
	d.t.Helper()
	var listener net.Listener
	var err error
	for range 50 {
		if listener, err = net.Listen("tcp", addr); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.addr = listener.Addr().String()
	d.server = grpc.NewServer()
	pecanv1.RegisterDispatcherServer(d.server, d)
	server := d.server
	go func() { _ = server.Serve(listener) }()
}

func (d *testDispatcher) stop() { d.server.Stop() }

// update changes what the dispatcher knows and pushes new snapshots.
func (d *testDispatcher) update(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	d.version++
	close(d.changed)
	d.changed = make(chan struct{})
}

// look reads under the lock.
func look[T any](d *testDispatcher, read func() T) T {
	d.mu.Lock()
	defer d.mu.Unlock()
	return read()
}

func (d *testDispatcher) Status(context.Context, *pecanv1.StatusRequest) (*pecanv1.StatusResponse, error) {
	return &pecanv1.StatusResponse{ClusterId: "cluster", Version: "test"}, nil
}

func (d *testDispatcher) RegisterDataset(stream grpc.ClientStreamingServer[pecanv1.RegisterDatasetRequest, pecanv1.RegisterDatasetResponse]) error {
	var all []byte
	var header *pecanv1.RegisterDatasetRequest_Header
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		if h := m.GetHeader(); h != nil {
			header = h
			if h.GetGraphBytes() > 64<<20 {
				return reason.New(reason.MessageTooLarge, "graph of %d bytes, limit %d", h.GetGraphBytes(), 64<<20)
			}
		}
		all = append(all, m.GetChunk()...)
	}
	if int64(len(all)) != header.GetGraphBytes() {
		return reason.New(reason.GraphParse, "short")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uploads = append(d.uploads, all)
	id := header.GetDatasetId()
	if id == "" {
		id = "f1"
	}
	return stream.SendAndClose(&pecanv1.RegisterDatasetResponse{DatasetId: id, Fingerprint: "f1", Created: true})
}

func (d *testDispatcher) GetDataset(_ context.Context, r *pecanv1.GetDatasetRequest) (*pecanv1.GetDatasetResponse, error) {
	if r.GetDatasetId() != "f1" {
		return nil, reason.New(reason.DatasetUnknown, "dataset %q is unknown", r.GetDatasetId())
	}
	return &pecanv1.GetDatasetResponse{DatasetId: "f1", Fingerprint: "f1"}, nil
}

func (d *testDispatcher) CreateJob(_ context.Context, r *pecanv1.CreateJobRequest) (*pecanv1.CreateJobResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, ok := d.jobs[r.GetRequestId()]
	if !ok {
		id = fmt.Sprintf("job-%d", len(d.jobs)+1)
		if d.forget {
			id = "another-job"
		}
		d.jobs[r.GetRequestId()] = id
	}
	return &pecanv1.CreateJobResponse{JobId: id, Created: !ok, Plan: d.plan, Options: d.options, ClientTimeoutS: 10, Workers: 1}, nil
}

func (d *testDispatcher) OpenEpoch(_ context.Context, r *pecanv1.OpenEpochRequest) (*pecanv1.OpenEpochResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.forget {
		return nil, reason.New(reason.ClientUnknown, "client is unknown")
	}
	d.opened = append(d.opened, r)
	d.epochs++
	return &pecanv1.OpenEpochResponse{Epoch: d.epochs - 1, AlreadyDelivered: d.delivered}, nil
}

func (d *testDispatcher) WatchEpoch(r *pecanv1.WatchEpochRequest, stream grpc.ServerStreamingServer[pecanv1.EpochUpdate]) error {
	for {
		d.mu.Lock()
		u := d.snapshot(r.GetEpoch())
		d.version++
		u.Version = d.version
		changed := d.changed
		d.mu.Unlock()
		if err := stream.Send(u); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (d *testDispatcher) FinishStream(_ context.Context, r *pecanv1.FinishStreamRequest) (*pecanv1.FinishStreamResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finished = append(d.finished, r)
	return &pecanv1.FinishStreamResponse{}, nil
}

func (d *testDispatcher) ReleaseStream(_ context.Context, r *pecanv1.ReleaseStreamRequest) (*pecanv1.ReleaseStreamResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.released = append(d.released, r)
	return &pecanv1.ReleaseStreamResponse{}, nil
}

func (d *testDispatcher) ReportWorker(_ context.Context, r *pecanv1.ReportWorkerRequest) (*pecanv1.ReportWorkerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported = append(d.reported, r)
	return &pecanv1.ReportWorkerResponse{}, nil
}

func (d *testDispatcher) CloseEpoch(_ context.Context, r *pecanv1.CloseEpochRequest) (*pecanv1.CloseEpochResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = append(d.closed, r.GetEpoch())
	return &pecanv1.CloseEpochResponse{}, nil
}

func (d *testDispatcher) ClientHeartbeat(_ context.Context, r *pecanv1.ClientHeartbeatRequest) (*pecanv1.ClientHeartbeatResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.forget {
		return nil, reason.New(reason.ClientUnknown, "client is unknown")
	}
	d.beats = append(d.beats, r)
	return &pecanv1.ClientHeartbeatResponse{}, nil
}

func (d *testDispatcher) ClientGoodbye(context.Context, *pecanv1.ClientGoodbyeRequest) (*pecanv1.ClientGoodbyeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.goodbyes++
	return &pecanv1.ClientGoodbyeResponse{}, nil
}

// spread gives every stream to a worker in turn, under lease 1.
func spread(total uint32, workers ...*testWorker) func(uint64) *pecanv1.EpochUpdate {
	return func(uint64) *pecanv1.EpochUpdate {
		u := &pecanv1.EpochUpdate{TotalStreams: total, StreamsFinal: true}
		for s := range total {
			u.Streams = append(u.Streams, &pecanv1.ConsumerStream{Stream: s, Lease: 1, Worker: workers[int(s)%len(workers)].address()})
		}
		return u
	}
}

// open connects to the dispatcher and makes a job; everything is closed and checked for leaks at the end.
func open(t testing.TB, d *testDispatcher, change ...func(*Config)) *Job {
	t.Helper()
	pool, err := buffer.NewPool(buffer.Config{Checked: true})
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Target: d.addr, Timeout: 5 * time.Second, Heartbeat: 20 * time.Millisecond, Pool: pool}
	for _, c := range change {
		c(&config)
	}
	before := openFiles(t)
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	s, err := Connect(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if leaks := config.Pool.Leaks(); len(leaks) > 0 {
			t.Errorf("%d buffers leaked, the first: %s", len(leaks), leaks[0])
		}
		if stats := config.Pool.Stats(); stats.Blocks != 0 || stats.Slots != 0 || stats.Misuses != 0 {
			t.Errorf("after close: %v", stats)
		}
		config.Pool.Close()
		// The other ends of the sockets, in this very process, close a moment later.
		for deadline := time.Now().Add(testDeadline); openFiles(t) > before && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
		if after := openFiles(t); after > before {
			t.Errorf("%d files open, %d before", after, before)
		}
	})
	job, err := s.CreateJob(ctx, JobSpec{DatasetID: "f1"})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// got is one element as a test reads it.
type got struct {
	epoch  uint64
	stream uint32
	index  uint64
	value  int64
	err    error
}

// read takes everything with NextElement, checking that each element is the one its place says.
func read(t testing.TB, it *Iteration) ([]got, error) {
	t.Helper()
	return readUpTo(t, it, -1)
}

func readUpTo(t testing.TB, it *Iteration, limit int) ([]got, error) {
	t.Helper()
	var all []got
	deadline := time.Now().Add(testDeadline)
	for limit < 0 || len(all) < limit {
		if time.Now().After(deadline) {
			t.Fatalf("nothing more after %d elements; waiting: %s", len(all), it.Waiting())
		}
		rows, status, err := it.NextElement(100 * time.Millisecond)
		switch status {
		case Ready:
			v := int64(binary.LittleEndian.Uint64(rows.Tensors[0].Data))
			all = append(all, got{epoch: rows.Epoch, stream: rows.Stream, index: rows.Index, value: v})
			if want := value(rows.Epoch, rows.Stream, rows.Index); v != want {
				t.Errorf("element %d of stream %d epoch %d is %x, want %x", rows.Index, rows.Stream, rows.Epoch, v, want)
			}
			rows.Release()
		case End:
			return all, nil
		case Failed:
			if !reason.Is(err, reason.ElementFailed) {
				return all, err
			}
			all = append(all, got{err: err})
		}
	}
	return all, nil
}

// wantAll checks that each stream gave elements 0 … count-1, each once and in order.
func wantAll(t testing.TB, all []got, counts ...uint64) {
	t.Helper()
	next := map[uint32]uint64{}
	for _, g := range all {
		if g.err != nil {
			continue
		}
		if g.index != next[g.stream] {
			t.Fatalf("stream %d gave element %d where %d was next", g.stream, g.index, next[g.stream])
		}
		next[g.stream]++
	}
	for s, count := range counts {
		if next[uint32(s)] != count {
			t.Errorf("stream %d gave %d elements, want %d", s, next[uint32(s)], count)
		}
	}
}

// eventually waits for something that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testDeadline); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("did not come about: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// same gives every stream of every epoch the same elements.
func same(s testStream) func(uint64, uint32) (testStream, bool) {
	return func(uint64, uint32) (testStream, bool) { return s, true }
}
