package client

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"sync"

	"github.com/golang/snappy"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

type testSlot struct {
	mem  []byte
	busy bool
}

type testChannel struct {
	open      *pecanv1.OpenStream
	credit    uint64
	sent      uint64
	announced bool
	closed    bool
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
				ch.credit, ch.announced = h.RawLen, false
				tc.w.mu.Lock()
				tc.w.acked[ch.open.GetId().Key()] = h.Index
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
			if ch.open.GetCredit() == 0 && !ch.announced {
				ch.announced = true
				tc.w.announced.Add(1)
				tc.mu.Unlock()
				tc.write(frame.Header{Type: frame.Ready, Channel: number, Lease: ch.open.GetLease(), RawLen: s.frameBytes(n)}, nil, nil, -1)
				tc.mu.Lock()
				continue
			}
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
	if s.hold != nil && s.holdAt == s.count {
		<-s.hold
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
		h.Flags |= frame.Columns
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
