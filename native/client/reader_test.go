package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/golang/snappy"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// byteLink is a connection on which only what is given arrives.
type byteLink struct {
	net.Conn
	in io.Reader
}

func (l *byteLink) Read(p []byte) (int, error)  { return l.in.Read(p) }
func (l *byteLink) Write(p []byte) (int, error) { return len(p), nil }
func (l *byteLink) Close() error                { return nil }

// feed gives bytes to the reader of a connection on which channel 1 reads stream 0 under lease 7, and returns the
// epoch, with what was accepted, and what ended the reading.
func feed(t testing.TB, in io.Reader, credit uint64) (*epoch, error) {
	t.Helper()
	pool, err := buffer.NewPool(buffer.Config{Checked: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Session{config: Config{}.withDefaults(), pool: pool, log: slog.New(slog.DiscardHandler), ctx: ctx, conns: map[connKey]*conn{}, jobs: map[*Job]struct{}{}}
	s.calls = newCallQueue(s)
	job := &Job{session: s, request: &pecanv1.CreateJobRequest{}, plan: &pecanv1.Plan{NumStreams: 1}, options: &pecanv1.JobOptions{MaxElementBytes: 1 << 20}, closed: true, lastCount: -1}
	e := &epoch{job: job, session: s, ctx: ctx, cancel: cancel, active: true, opened: true, streams: map[uint32]*stream{},
		notify: make(chan struct{}, 1), kick: make(chan struct{}, 1), options: IterOptions{MaxOutstandingBytes: 1 << 30}}
	st := e.streamOf(0)
	st.lease, st.worker = 7, &pecanv1.WorkerAddress{WorkerId: "w"}
	link := &byteLink{in: in}
	c := &conn{session: s, worker: st.worker, ctx: ctx, cancel: func() {}, wake: make(chan struct{}, 1), channels: map[uint32]*channel{}, up: true, raw: link}
	st.channel = &channel{stream: st, conn: c, number: 1, lease: 7, granted: credit}
	c.channels[1] = st.channel
	r := newReader(c, link)
	err = r.run()
	r.close()
	t.Cleanup(func() {
		e.close()
		cancel()
		if leaks := pool.Leaks(); len(leaks) > 0 {
			t.Errorf("%d buffers leaked, the first: %s", len(leaks), leaks[0])
		}
		pool.Close()
	})
	return e, err
}

// element writes a DATA frame with one int64 and one string.
func element(change func(h *frame.Header, table *frame.Table, payload *[]byte)) []byte {
	payload := make([]byte, 64, 128)
	binary.LittleEndian.PutUint64(payload, 42)
	payload = binary.LittleEndian.AppendUint64(payload, 3)
	payload = append(payload, "abc"...)
	table := &frame.Table{Components: 2, Rows: []frame.Tensor{{DType: 9, Bytes: 8}, {DType: frame.DTString, Bytes: 11}}}
	h := frame.Header{Type: frame.Data, Channel: 1, Count: 1, Lease: 7, PayloadLen: uint64(len(payload)), RawLen: uint64(len(payload))}
	change(&h, table, &payload)
	return append(frame.Append(nil, h, frame.AppendTable(nil, h.Flags, table)), payload...)
}

func TestFramesOfAHostileWorkerEndTheConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		wire func() []byte
		want reason.Reason
		// accepted elements before the end.
		accepted uint64
		credit   uint64
	}{
		"nothing hostile": {want: reason.Unavailable, accepted: 1, wire: func() []byte {
			return element(func(*frame.Header, *frame.Table, *[]byte) {})
		}},
		"a payload that is torn": {want: reason.Unavailable, wire: func() []byte {
			wire := element(func(*frame.Header, *frame.Table, *[]byte) {})
			return wire[:len(wire)-1]
		}},
		"a string longer than the payload": {want: reason.FrameCorrupt, wire: func() []byte {
			return element(func(_ *frame.Header, _ *frame.Table, p *[]byte) { (*p)[64] = 4 })
		}},
		"a string of nearly 2^64 bytes": {want: reason.FrameCorrupt, wire: func() []byte {
			return element(func(_ *frame.Header, _ *frame.Table, p *[]byte) { binary.LittleEndian.PutUint64((*p)[64:], 1<<64-8) })
		}},
		"bytes behind the last string": {want: reason.FrameCorrupt, wire: func() []byte {
			return element(func(_ *frame.Header, _ *frame.Table, p *[]byte) { (*p)[64] = 2 })
		}},
		"a checksum that does not fit": {want: reason.FrameCorrupt, wire: func() []byte {
			return element(func(h *frame.Header, _ *frame.Table, p *[]byte) {
				h.Flags, h.PayloadCRC = frame.Checksum, crc32.Checksum(*p, frame.Castagnoli)+1
			})
		}},
		"snappy that declares more than the header": {want: reason.FrameCorrupt, wire: func() []byte {
			return element(func(h *frame.Header, _ *frame.Table, p *[]byte) {
				*p = snappy.Encode(nil, append(*p, 0))
				h.Flags, h.PayloadLen = frame.Snappy, uint64(len(*p))
			})
		}},
		"snappy that is none": {want: reason.FrameCorrupt, wire: func() []byte {
			return element(func(h *frame.Header, _ *frame.Table, p *[]byte) { h.Flags = frame.Snappy })
		}},
		"a slot that was not announced": {want: reason.FrameCorrupt, wire: func() []byte {
			return element(func(h *frame.Header, _ *frame.Table, p *[]byte) { h.Flags, h.PayloadLen, *p = frame.Shared, 0, nil })
		}},
		"a slot without a descriptor": {want: reason.FrameCorrupt, wire: func() []byte {
			return frame.Append(nil, frame.Header{Type: frame.Slot, RawLen: 4096}, nil)
		}},
		"a frame that only readers send": {want: reason.FrameCorrupt, wire: func() []byte {
			return frame.Append(nil, frame.Header{Type: frame.Open, Channel: 1}, nil)
		}},
		"an error of the connection": {want: reason.FrameCorrupt, wire: func() []byte {
			return frame.Append(nil, frame.Header{Type: frame.Error}, []byte("\xff"))
		}},
		"more than the credit allows": {want: reason.FrameCorrupt, accepted: 2, credit: 100, wire: func() []byte {
			var wire []byte
			for i := range uint64(3) {
				wire = append(wire, element(func(h *frame.Header, _ *frame.Table, _ *[]byte) { h.Index = i })...)
			}
			return wire
		}},
		"an element for a channel that is closed": {want: reason.Unavailable, wire: func() []byte {
			return element(func(h *frame.Header, _ *frame.Table, _ *[]byte) { h.Channel = 2 })
		}},
		"an element above the limit keeps its place": {want: reason.Unavailable, accepted: 1, wire: func() []byte {
			return element(func(h *frame.Header, table *frame.Table, p *[]byte) {
				*p = append(make([]byte, 2<<20), (*p)[64:]...)
				table.Rows[0].Bytes, table.Rows[0].Dims = 2<<20, []uint64{1 << 18}
				h.PayloadLen = uint64(len(*p))
				h.RawLen = h.PayloadLen
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wire := tc.wire()
			credit := uint64(1 << 20)
			if tc.credit > 0 {
				credit = tc.credit
			}
			e, err := feed(t, &slowBytes{rest: wire}, credit)
			if !reason.Is(err, tc.want) {
				t.Errorf("ended with %v, want %s", err, tc.want)
			}
			if e.accepted != tc.accepted {
				t.Errorf("%d elements accepted, want %d", e.accepted, tc.accepted)
			}
		})
	}
}

// slowBytes gives a few bytes at a time, as a network does.
type slowBytes struct{ rest []byte }

func (s *slowBytes) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1000)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// FuzzReader feeds a connection whatever the fuzzer likes, with the checksums made right, and takes what was accepted.
func FuzzReader(f *testing.F) {
	plain := element(func(*frame.Header, *frame.Table, *[]byte) {})
	f.Add(plain)
	f.Add(element(func(h *frame.Header, _ *frame.Table, _ *[]byte) { h.Flags = frame.Block }))
	f.Add(element(func(h *frame.Header, _ *frame.Table, p *[]byte) {
		*p = snappy.Encode(nil, *p)
		h.Flags, h.PayloadLen = frame.Snappy, uint64(len(*p))
	}))
	f.Add(append(plain, frame.Append(nil, frame.Header{Type: frame.End, Channel: 1, Index: 1, Lease: 7}, nil)...))
	f.Add(frame.Append(plain, frame.Header{Type: frame.Error, Flags: frame.Element, Channel: 1, Index: 1, Lease: 7}, []byte("\x08\x03")))
	f.Add(frame.Append(nil, frame.Header{Type: frame.Slot, RawLen: 4096}, nil))
	f.Fuzz(func(t *testing.T, wire []byte) {
		repair(wire)
		e, err := feed(t, &slowBytes{rest: wire}, 1<<20)
		if err == nil {
			t.Fatal("a connection that ended gave no error")
		}
		for range 100 {
			rows, found, _ := e.take(8, true)
			if found != foundRows {
				break
			}
			for i := range rows.Tensors {
				touch(t, rows, &rows.Tensors[i])
			}
			rows.Release()
		}
	})
}

// repair makes the checksum of each frame right as far as frames can be told apart.
func repair(wire []byte) {
	for len(wire) >= frame.HeaderSize {
		meta := min(uint64(binary.LittleEndian.Uint32(wire[32:])), uint64(len(wire)-frame.HeaderSize))
		payload := min(binary.LittleEndian.Uint64(wire[40:]), uint64(len(wire)-frame.HeaderSize)-meta)
		crc := crc32.Update(crc32.Checksum(wire[:60], frame.Castagnoli), frame.Castagnoli, wire[frame.HeaderSize:frame.HeaderSize+meta])
		binary.LittleEndian.PutUint32(wire[60:], crc)
		wire = wire[frame.HeaderSize+meta+payload:]
	}
}

// touch reads every byte of a tensor, as whoever takes it would.
func touch(t *testing.T, rows *Rows, tensor *Tensor) {
	if tensor.Dims[0] != int64(rows.Count) {
		t.Fatalf("dims %v of %d rows", tensor.Dims, rows.Count)
	}
	sum := 0
	for _, b := range tensor.Data {
		sum += int(b)
	}
	n := 0
	for i := range tensor.Strings() {
		n += tensor.StringLength(i)
	}
	if tensor.DType == frame.DTString && n != len(tensor.Data) || sum < 0 {
		t.Fatalf("strings of %d bytes in %d", n, len(tensor.Data))
	}
}

// In shared memory a worker can still write what was looked at when the frame came.
func TestStringsThatChangeAfterTheyWereLookedAtLeaveNoLockBehind(t *testing.T) {
	e, _ := feed(t, bytes.NewReader(element(func(*frame.Header, *frame.Table, *[]byte) {})), 1<<20)
	binary.LittleEndian.PutUint64(e.streams[0].queue[0].block.Bytes()[64:], 1<<40)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a string of a tebibyte was taken")
			}
		}()
		_, _, _ = e.take(1, false)
	}()
	if !e.mu.TryLock() {
		t.Error("the epoch's lock stays held: closing it waits for ever")
	}
	e.mu.Unlock()
}
