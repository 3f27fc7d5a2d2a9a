package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"time"

	"github.com/golang/snappy"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// byteLink is a connection to a worker. It answers the handshake, answers the request of a stream with fixed bytes, and
// then ends.
type byteLink struct {
	net.Conn
	in     io.Reader
	asked  chan struct{}
	writes int
}

func newByteLink(wire io.Reader) *byteLink {
	welcome, err := proto.Marshal(&pecanv1.DataWelcome{WorkerId: "w"})
	if err != nil {
		panic(err)
	}
	hello := frame.Append(nil, frame.Header{Type: frame.Welcome}, welcome)
	asked := make(chan struct{})
	return &byteLink{in: io.MultiReader(bytes.NewReader(hello), afterwards{asked, wire}), asked: asked}
}

// afterwards reads when a channel is closed.
type afterwards struct {
	begin <-chan struct{}
	io.Reader
}

func (a afterwards) Read(p []byte) (int, error) {
	<-a.begin
	return a.Reader.Read(p)
}

func (l *byteLink) Read(p []byte) (int, error) { return l.in.Read(p) }

// Write is called for HELLO and then for OPEN.
func (l *byteLink) Write(p []byte) (int, error) {
	if l.writes++; l.writes == 2 {
		close(l.asked)
	}
	return len(p), nil
}

func (l *byteLink) Close() error { return nil }

func (l *byteLink) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (l *byteLink) SetDeadline(time.Time) error { return nil }

func (l *byteLink) SetWriteDeadline(time.Time) error { return nil }

// wires lets one session read several byte sequences. Each sequence is everything that a worker sends on channel 1, where
// the session reads stream 0 under lease 7.
type wires struct {
	job  *Job
	next chan io.Reader
}

func newWires(t testing.TB) *wires {
	d := startDispatcher(t, func(d *testDispatcher) { d.options.MaxElementBytes = 1 << 20 })
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{
			{Lease: 7, Assignment: 1, WorkerNumber: numberOf(&pecanv1.WorkerAddress{WorkerId: "w", Tcp: "worker:1"})}}}
	}
	w := &wires{next: make(chan io.Reader, 1)}
	w.job = open(t, d, func(c *Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != "worker:1" {
				return new(net.Dialer).DialContext(ctx, network, address)
			}
			select {
			case wire := <-w.next:
				return newByteLink(wire), nil
			case <-ctx.Done():
				// All bytes were read. The next dial fails.
				return nil, ctx.Err()
			}
		}
	})
	return w
}

// feed returns the epoch that has read the bytes and the error that ended the reading; nil if the stream ended.
func (w *wires) feed(t testing.TB, wire io.Reader, credit int64) (*Iteration, error) {
	t.Helper()
	w.next <- wire
	it := w.job.Open(IterOptions{MaxOutstandingBytes: credit, NoPrefetch: true})
	t.Cleanup(func() { _ = it.Close() })
	var st epoch.StreamState
	eventually(t, "the bytes are read", func() bool {
		state := it.epoch().State()
		if len(state.Streams) == 1 {
			st = state.Streams[0]
		}
		return st.Failures > 0 || st.Ended
	})
	return it, st.LastError
}

// dataFrame writes a DATA frame with one int64 and one string.
func dataFrame(change func(h *frame.Header, table *frame.Table, payload *[]byte)) []byte {
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
		credit   int64
	}{
		"nothing hostile": {want: reason.Unavailable, accepted: 1, wire: func() []byte {
			return dataFrame(func(*frame.Header, *frame.Table, *[]byte) {})
		}},
		"a payload that is torn": {want: reason.Unavailable, wire: func() []byte {
			wire := dataFrame(func(*frame.Header, *frame.Table, *[]byte) {})
			return wire[:len(wire)-1]
		}},
		"a string longer than the payload": {want: reason.FrameCorrupt, wire: func() []byte {
			return dataFrame(func(_ *frame.Header, _ *frame.Table, p *[]byte) { (*p)[64] = 4 })
		}},
		"a string of nearly 2^64 bytes": {want: reason.FrameCorrupt, wire: func() []byte {
			return dataFrame(func(_ *frame.Header, _ *frame.Table, p *[]byte) { binary.LittleEndian.PutUint64((*p)[64:], 1<<64-8) })
		}},
		"bytes after the last string": {want: reason.FrameCorrupt, wire: func() []byte {
			return dataFrame(func(_ *frame.Header, _ *frame.Table, p *[]byte) { (*p)[64] = 2 })
		}},
		"a checksum that does not fit": {want: reason.FrameCorrupt, wire: func() []byte {
			return dataFrame(func(h *frame.Header, _ *frame.Table, p *[]byte) {
				h.Flags, h.PayloadCRC = frame.Checksum, crc32.Checksum(*p, frame.Castagnoli)+1
			})
		}},
		"snappy that declares more than the header": {want: reason.FrameCorrupt, wire: func() []byte {
			return dataFrame(func(h *frame.Header, _ *frame.Table, p *[]byte) {
				*p = snappy.Encode(nil, append(*p, 0))
				h.Flags, h.PayloadLen = frame.Snappy, uint64(len(*p))
			})
		}},
		"snappy that is none": {want: reason.FrameCorrupt, wire: func() []byte {
			return dataFrame(func(h *frame.Header, _ *frame.Table, p *[]byte) { h.Flags = frame.Snappy })
		}},
		"a slot that was not announced": {want: reason.FrameCorrupt, wire: func() []byte {
			return dataFrame(func(h *frame.Header, _ *frame.Table, p *[]byte) { h.Flags, h.PayloadLen, *p = frame.Shared, 0, nil })
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
				wire = append(wire, dataFrame(func(h *frame.Header, _ *frame.Table, _ *[]byte) { h.Index = i })...)
			}
			return wire
		}},
		"an element for a channel that is closed": {want: reason.Unavailable, wire: func() []byte {
			return dataFrame(func(h *frame.Header, _ *frame.Table, _ *[]byte) { h.Channel = 2 })
		}},
		"an element above the limit keeps its place": {want: reason.Unavailable, accepted: 1, wire: func() []byte {
			return dataFrame(func(h *frame.Header, table *frame.Table, p *[]byte) {
				*p = append(make([]byte, 2<<20), (*p)[64:]...)
				table.Rows[0].Bytes, table.Rows[0].Dims = 2<<20, []uint64{1 << 18}
				h.PayloadLen = uint64(len(*p))
				h.RawLen = h.PayloadLen
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wire := tc.wire()
			credit := int64(1 << 30)
			if tc.credit > 0 {
				credit = tc.credit
			}
			it, err := newWires(t).feed(t, &slowBytes{rest: wire}, credit)
			if !reason.Is(err, tc.want) {
				t.Errorf("ended with %v, want %s", err, tc.want)
			}
			if accepted := it.epoch().State().Accepted; accepted != tc.accepted {
				t.Errorf("%d elements accepted, want %d", accepted, tc.accepted)
			}
		})
	}
}

// slowBytes returns a few bytes at a time, as a network does.
type slowBytes struct{ rest []byte }

func (s *slowBytes) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1000)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// FuzzReader sends arbitrary bytes with corrected checksums to a connection, and dequeues the accepted elements.
func FuzzReader(f *testing.F) {
	plain := dataFrame(func(*frame.Header, *frame.Table, *[]byte) {})
	f.Add(plain)
	f.Add(dataFrame(func(h *frame.Header, _ *frame.Table, _ *[]byte) { h.Flags = frame.Columns }))
	f.Add(dataFrame(func(h *frame.Header, _ *frame.Table, p *[]byte) {
		*p = snappy.Encode(nil, *p)
		h.Flags, h.PayloadLen = frame.Snappy, uint64(len(*p))
	}))
	f.Add(append(plain, frame.Append(nil, frame.Header{Type: frame.End, Channel: 1, Index: 1, Lease: 7}, nil)...))
	f.Add(frame.Append(plain, frame.Header{Type: frame.Error, Flags: frame.Element, Channel: 1, Index: 1, Lease: 7}, []byte("\x08\x03")))
	f.Add(frame.Append(nil, frame.Header{Type: frame.Slot, RawLen: 4096}, nil))
	w := newWires(f)
	f.Fuzz(func(t *testing.T, wire []byte) {
		repair(wire)
		it, _ := w.feed(t, &slowBytes{rest: wire}, 1<<30)
		for range 100 {
			elements, status, _ := it.NextBlock(8, 0)
			if status == Failed {
				continue
			}
			if status != Ready {
				break
			}
			for i := range elements.Tensors {
				touch(t, elements, &elements.Tensors[i])
			}
			elements.Release()
		}
	})
}

// repair corrects the checksum of each frame that it can parse.
func repair(wire []byte) {
	for len(wire) >= frame.HeaderSize {
		meta := min(uint64(binary.LittleEndian.Uint32(wire[32:])), uint64(len(wire)-frame.HeaderSize))
		payload := min(binary.LittleEndian.Uint64(wire[40:]), uint64(len(wire)-frame.HeaderSize)-meta)
		crc := crc32.Update(crc32.Checksum(wire[:60], frame.Castagnoli), frame.Castagnoli, wire[frame.HeaderSize:frame.HeaderSize+meta])
		binary.LittleEndian.PutUint32(wire[60:], crc)
		wire = wire[frame.HeaderSize+meta+payload:]
	}
}

// touch reads every byte of a tensor, as a consumer would.
func touch(t *testing.T, elements *element.Elements, tensor *element.Tensor) {
	if tensor.Dims[0] != int64(elements.Count) {
		t.Fatalf("dims %v of %d elements", tensor.Dims, elements.Count)
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
