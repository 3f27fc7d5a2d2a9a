package worker

import (
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"time"

	"github.com/golang/snappy"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// got is the content of a frame: elements, the error of one, or the end.
type got struct {
	header   frame.Header
	elements [][]value
	failure  *reason.Error
}

// reader is a trainer's side of the data plane, one frame at a time.
type reader struct {
	t      testing.TB
	nc     net.Conn
	in     io.Reader
	frames *frame.Reader
	slots  map[uint64][]byte
	fds    []int
	// keep is set if shared memory slots are not returned.
	keep bool
	// scratch, if set, is used for payloads instead of new memory.
	scratch []byte
}

// startOpen starts a worker with one stream, and opens the stream over TCP.
func startOpen(t testing.TB, o *pecanv1.StartStream) (*Worker, *reader) {
	t.Helper()
	w := startWorker(t, nil)
	w.streams.Start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	return w, r
}

func dialTCP(t testing.TB, w *Worker) *reader {
	t.Helper()
	nc, err := net.Dial("tcp", w.identity.LocalAddress)
	if err != nil {
		t.Fatal(err)
	}
	return greet(t, nc, &pecanv1.DataHello{ClientId: "test", WorkerId: w.identity.ID()})
}

func dialShared(t testing.TB, w *Worker) *reader {
	t.Helper()
	nc, err := net.Dial("unix", w.server.UnixName())
	if err != nil {
		t.Fatal(err)
	}
	return greet(t, nc, &pecanv1.DataHello{ClientId: "test", SharedMemory: true})
}

func greet(t testing.TB, nc net.Conn, hello *pecanv1.DataHello) *reader {
	t.Helper()
	r := &reader{t: t, nc: nc, slots: map[uint64][]byte{}}
	r.in = nc
	if conn, ok := nc.(*net.UnixConn); ok {
		r.in = &descriptorReader{conn: conn, r: r}
	}
	r.frames = frame.NewReader(r.in)
	t.Cleanup(func() {
		nc.Close()
		for _, memory := range r.slots {
			_ = unix.Munmap(memory)
		}
	})
	if err := nc.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	r.send(frame.Header{Type: frame.Hello}, hello)
	h, _, err := r.frames.Next()
	if err != nil || h.Type != frame.Welcome {
		t.Fatalf("no welcome: %v %v", h.Type, err)
	}
	return r
}

// descriptorReader reads a Unix connection and collects the descriptors that come with the bytes.
type descriptorReader struct {
	conn *net.UnixConn
	r    *reader
}

func (d *descriptorReader) Read(p []byte) (int, error) {
	oob := make([]byte, 256)
	n, oobn, _, _, err := d.conn.ReadMsgUnix(p, oob)
	if err != nil {
		return n, err
	}
	if n == 0 && oobn == 0 {
		return 0, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return n, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return n, err
		}
		d.r.fds = append(d.r.fds, fds...)
	}
	return n, nil
}

func (r *reader) send(h frame.Header, message proto.Message) {
	r.t.Helper()
	var meta []byte
	if message != nil {
		var err error
		if meta, err = proto.Marshal(message); err != nil {
			r.t.Fatal(err)
		}
	}
	if _, err := r.nc.Write(frame.Append(nil, h, meta)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reader) open(channel uint32, o *pecanv1.OpenStream) {
	r.t.Helper()
	r.send(frame.Header{Type: frame.Open, Channel: channel}, o)
}

// handled waits for a pong, which comes after all earlier frames were handled. It returns if the connection was
// closed.
func (r *reader) handled() {
	_, _ = r.nc.Write(frame.Append(nil, frame.Header{Type: frame.Ping}, nil))
	for h := (frame.Header{}); h.Type != frame.Pong; {
		var err error
		if h, _, err = r.frames.Next(); err != nil && !isTimeout(err) {
			return
		} else if err != nil {
			r.t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, r.in, int64(h.PayloadLen)); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *reader) credit(channel uint32, index, total uint64) {
	r.t.Helper()
	r.send(frame.Header{Type: frame.Credit, Channel: channel, Index: index, RawLen: total}, nil)
}

// next reads frames up to one with elements, an error or the end.
func (r *reader) next() (got, error) {
	for {
		h, meta, err := r.frames.Next()
		if err != nil {
			return got{}, err
		}
		switch h.Type {
		case frame.Data:
			return r.data(h, meta)
		case frame.End:
			return got{header: h}, nil
		case frame.Error:
			detail := new(pecanv1.ErrorDetail)
			if err := proto.Unmarshal(meta, detail); err != nil {
				return got{}, err
			}
			return got{header: h, failure: reason.FromDetail(detail)}, nil
		case frame.Slot:
			if err := r.slot(h); err != nil {
				return got{}, err
			}
		case frame.Drop:
			_ = unix.Munmap(r.slots[h.Index])
			delete(r.slots, h.Index)
		}
	}
}

func (r *reader) slot(h frame.Header) error {
	if len(r.fds) == 0 {
		return fmt.Errorf("slot %d came without a descriptor", h.Index)
	}
	fd := r.fds[0]
	r.fds = r.fds[1:]
	defer unix.Close(fd)
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("slot %d is not sealed: %v", h.Index, err)
	}
	memory, err := unix.Mmap(fd, 0, int(h.RawLen), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	r.slots[h.Index] = memory
	return err
}

func (r *reader) data(h frame.Header, meta []byte) (got, error) {
	var table frame.Table
	if err := frame.ParseTable(h, meta, &table); err != nil {
		return got{}, err
	}
	payload, err := r.payload(h, &table)
	if err != nil {
		return got{}, err
	}
	out := got{header: h}
	if r.scratch != nil {
		return out, nil
	}
	for i := range int(h.Count) {
		var element []value
		for c := range table.Components {
			row := &table.Rows[c]
			bytes := row.Bytes
			offset := row.Offset
			if h.Flags&frame.Columns != 0 {
				bytes /= uint64(h.Count)
				offset += uint64(i) * bytes
			} else {
				row = &table.Rows[i*table.Components+c]
				bytes, offset = row.Bytes, row.Offset
			}
			element = append(element, value{row.DType, append([]uint64(nil), row.Dims...), payload[offset : offset+bytes]})
		}
		out.elements = append(out.elements, element)
	}
	return out, nil
}

func (r *reader) payload(h frame.Header, table *frame.Table) ([]byte, error) {
	if h.Flags&frame.Shared != 0 {
		memory, ok := r.slots[table.Slot]
		if !ok || uint64(len(memory)) < h.RawLen {
			return nil, fmt.Errorf("slot %d is unknown or too small", table.Slot)
		}
		var copied []byte
		if r.scratch == nil {
			copied = append([]byte(nil), memory[:h.RawLen]...)
		}
		if !r.keep {
			r.send(frame.Header{Type: frame.Release, Index: table.Slot}, nil)
		}
		return copied, nil
	}
	payload := r.scratch
	if payload == nil {
		payload = make([]byte, h.PayloadLen)
	}
	payload = payload[:h.PayloadLen]
	if _, err := io.ReadFull(r.in, payload); err != nil {
		return nil, err
	}
	if h.Flags&frame.Checksum != 0 && crc32.Checksum(payload, frame.Castagnoli) != h.PayloadCRC {
		return nil, fmt.Errorf("payload checksum differs")
	}
	if h.Flags&frame.Snappy != 0 {
		return snappy.Decode(nil, payload)
	}
	return payload, nil
}

// stream reads a channel to its end. It returns one entry per index, nil if the element failed.
func (r *reader) stream(start uint64) (elements [][]value, failures map[uint64]*reason.Error, end frame.Header) {
	r.t.Helper()
	failures = map[uint64]*reason.Error{}
	for {
		g, err := r.next()
		if err != nil {
			r.t.Fatal(err)
		}
		switch {
		case g.header.Type == frame.End:
			return elements, failures, g.header
		case g.failure != nil && g.header.Flags&frame.Element == 0:
			r.t.Fatalf("channel closed: %v", g.failure)
		case g.failure != nil:
			failures[g.header.Index] = g.failure
			elements = append(elements, nil)
		default:
			elements = append(elements, g.elements...)
		}
		if want := start + uint64(len(elements)); g.header.Index+uint64(max(g.header.Count, 1)) != want {
			r.t.Fatalf("elements %d+%d came, up to %d were expected", g.header.Index, g.header.Count, want)
		}
	}
}
