package worker

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"io"
	"math"
	"net"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/serve"
	"github.com/pecan-ml/pecan/service/worker/window"
)

func encoded(t testing.TB, h frame.Header, message proto.Message) []byte {
	t.Helper()
	var meta []byte
	if message != nil {
		var err error
		if meta, err = proto.Marshal(message); err != nil {
			t.Fatal(err)
		}
	}
	return frame.Append(nil, h, meta)
}

func TestAnInvalidPeerIsDisconnectedAndOthersAreServed(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	w.streams.Start(o)
	hello := encoded(t, frame.Header{Type: frame.Hello}, &pecanv1.DataHello{})
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	garbage := make([]byte, 4096)
	_, _ = rand.Read(garbage)
	long := encoded(t, frame.Header{Type: frame.Hello}, &pecanv1.DataHello{})
	binary.LittleEndian.PutUint32(long[32:], frame.MaxMeta+1)
	cases := map[string][]byte{
		"random bytes":               garbage,
		"a web request":              []byte("GET / HTTP/1.1\r\nHost: worker\r\n\r\n" + string(make([]byte, 64))),
		"an open before the hello":   encoded(t, frame.Header{Type: frame.Open, Channel: 1}, opening(o)),
		"metadata above the limit":   long,
		"a hello for another worker": encoded(t, frame.Header{Type: frame.Hello}, &pecanv1.DataHello{WorkerId: "other"}),
		"a frame only workers send":  join(hello, encoded(t, frame.Header{Type: frame.End}, nil)),
		"a release of a slot":        join(hello, encoded(t, frame.Header{Type: frame.Release, Index: 3}, nil)),
		"an open without a stream":   join(hello, encoded(t, frame.Header{Type: frame.Open, Channel: 1}, &pecanv1.OpenStream{})),
		"an open of the channel 0":   join(hello, encoded(t, frame.Header{Type: frame.Open}, opening(o))),
		"an open that is no message": join(hello, frame.Append(nil, frame.Header{Type: frame.Open, Channel: 1}, []byte{0xff})),
		"a channel that is opened twice": join(hello, encoded(t, frame.Header{Type: frame.Open, Channel: 1}, opening(o)),
			encoded(t, frame.Header{Type: frame.Open, Channel: 1}, opening(o))),
		"data for the worker": join(hello, frame.Append(nil, frame.Header{Type: frame.Data, Count: 1}, nil)),
		"a bad checksum": join(hello, func() []byte {
			b := encoded(t, frame.Header{Type: frame.Ping}, nil)
			b[20] ^= 1
			return b
		}()),
	}
	for name, input := range cases {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", w.identity.LocalAddress)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if err := nc.SetDeadline(time.Now().Add(deadline)); err != nil {
				t.Fatal(err)
			}
			// The worker may close the connection before all is written.
			_, _ = nc.Write(input)
			if _, err := io.Copy(io.Discard, nc); err != nil && isTimeout(err) {
				t.Fatal("the connection stays open")
			}
		})
	}
	r := dialTCP(t, w)
	r.open(1, opening(o))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatal(len(elements))
	}
}

// A peer is unknown before its hello. The worker closes its connection after the header of a large hello, not
// after the timeout.
func TestALargeHelloIsRefusedBeforeItIsRead(t *testing.T) {
	w := startWorker(t, nil)
	large := encoded(t, frame.Header{Type: frame.Hello}, nil)
	binary.LittleEndian.PutUint32(large[32:], serve.MaxHello+1)
	nc, err := net.Dial("tcp", w.identity.LocalAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(serve.HelloTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(large); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, nc); err != nil && isTimeout(err) {
		t.Fatal("the worker waits for the metadata")
	}
	if err := nc.Close(); err != nil {
		t.Fatal(err)
	}
}

// Frames of a reader are short after its hello. Long metadata would stay in memory until it is complete, for
// each of a thousand readers.
func TestALongFrameOfAReaderIsRefusedBeforeItIsRead(t *testing.T) {
	w := startWorker(t, nil)
	for _, kind := range []frame.Type{frame.Open, frame.Credit, frame.Ping} {
		r := dialTCP(t, w)
		long := encoded(t, frame.Header{Type: kind, Channel: 1}, nil)
		binary.LittleEndian.PutUint32(long[32:], serve.MaxRequest+1)
		if _, err := r.nc.Write(long); err != nil {
			t.Fatal(err)
		}
		if err := r.nc.SetDeadline(time.Now().Add(deadline)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.nc); err != nil && isTimeout(err) {
			t.Fatalf("the worker waits for the metadata of a %v frame", kind)
		}
		r.nc.Close()
	}
}

// 2000 silent TCP connections take no place from readers, neither over TCP nor on this host.
func TestReadersAreServedInAFloodOfConnections(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	w.streams.Start(o)
	for range 2000 {
		nc, err := net.Dial("tcp", w.identity.LocalAddress)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	for channel, r := range []*reader{dialTCP(t, w), dialShared(t, w)} {
		r.open(uint32(channel+1), opening(o))
		if elements, _, _ := r.stream(0); len(elements) != 1000 {
			t.Fatal(len(elements))
		}
		r.nc.Close()
	}
}

func TestReadersAboveTheLimitAreRefusedAndLocalOnesAreNot(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	w.streams.Start(o)
	for range serve.MaxReaders {
		dialTCP(t, w)
	}
	nc, err := net.Dial("tcp", w.identity.LocalAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Write(encoded(t, frame.Header{Type: frame.Hello}, &pecanv1.DataHello{})); err != nil {
		t.Fatal(err)
	}
	h, meta, err := frame.NewReader(nc).Next()
	detail := new(pecanv1.ErrorDetail)
	if err != nil || h.Type != frame.Error || proto.Unmarshal(meta, detail) != nil || reason.FromDetail(detail).Reason != reason.ServiceLimit {
		t.Fatalf("%v %v %v", h.Type, detail, err)
	}
	r := dialShared(t, w)
	r.open(1, opening(o))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatal(len(elements))
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

func TestOpensOfUnknownStreamsDoNotHarmTheConnection(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	w.streams.Start(o)
	r := dialTCP(t, w)
	remainder := opening(o)
	remainder.Remainder = true
	r.open(1, remainder)
	if g, err := r.next(); err != nil || g.failure == nil || g.failure.Reason != reason.BadArgument {
		t.Fatal(g, err)
	}
	unknown := opening(o)
	unknown.Id = &pecanv1.StreamId{JobId: "job", Epoch: 1, Stream: 99}
	r.open(2, unknown)
	// The channel is closed during the search: no frame comes for it, and the connection continues.
	r.send(frame.Header{Type: frame.Close, Channel: 2}, nil)
	r.open(3, opening(o))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatal(len(elements))
	}
	beyond := opening(o)
	beyond.StartIndex = 1 << 40
	r.open(4, beyond)
	if g, err := r.next(); err != nil || g.header.Type != frame.End || g.header.Index != 1000 {
		t.Fatal(g, err)
	}
}

// Numbers that no reader has a reason to send do no harm: the next reader gets every element.
func TestInvalidNumbersOfReadersAreHarmless(t *testing.T) {
	const most = math.MaxUint64
	cases := map[string]func(r *reader, o *pecanv1.StartStream){
		"a start at 2^64-1": func(r *reader, o *pecanv1.StartStream) {
			open := opening(o)
			open.StartIndex = most
			r.open(1, open)
		},
		"a credit of 2^64-1": func(r *reader, o *pecanv1.StartStream) {
			open := opening(o)
			open.Credit = most
			r.open(1, open)
		},
		"more credit than there are numbers": func(r *reader, o *pecanv1.StartStream) {
			r.open(1, opening(o))
			r.credit(1, 0, most)
		},
		"an acknowledgement of what is not": func(r *reader, o *pecanv1.StartStream) {
			open := opening(o)
			open.Credit = 1
			r.open(1, open)
			r.credit(1, most, 1)
		},
		"a credit that shrinks": func(r *reader, o *pecanv1.StartStream) {
			r.open(1, opening(o))
			r.credit(1, 0, 0)
		},
		"a credit for a channel that is not": func(r *reader, o *pecanv1.StartStream) { r.credit(math.MaxUint32, 1, 1) },
		"a channel that is the last":         func(r *reader, o *pecanv1.StartStream) { r.open(math.MaxUint32, opening(o)) },
		"a lease that was never granted": func(r *reader, o *pecanv1.StartStream) {
			open := opening(o)
			open.Lease = most
			r.open(1, open)
		},
		"a compression that is none": func(r *reader, o *pecanv1.StartStream) {
			open := opening(o)
			open.Compression = 99
			r.open(1, open)
		},
	}
	w := startWorker(t, nil)
	stream := uint32(0)
	for name, hostile := range cases {
		t.Run(name, func(t *testing.T) {
			o := startCommand("thousand")
			stream++
			o.Id.Stream = stream
			w.streams.Start(o)
			r := dialTCP(t, w)
			hostile(r, o)
			r.handled()
			r.nc.Close()
			next := dialTCP(t, w)
			next.open(7, opening(o))
			if elements, _, _ := next.stream(0); len(elements) != 1000 {
				t.Fatal(len(elements))
			}
			next.nc.Close()
		})
	}
}

func FuzzConnection(f *testing.F) {
	hello := encoded(f, frame.Header{Type: frame.Hello}, &pecanv1.DataHello{SharedMemory: true})
	f.Add(hello)
	f.Add(append(hello, encoded(f, frame.Header{Type: frame.Open, Channel: 1}, opening(startCommand("thousand")))...))
	f.Add(append(hello, encoded(f, frame.Header{Type: frame.Credit, Channel: 1, Index: 5, RawLen: 1 << 50}, nil)...))
	w := startWorker(f, nil)
	w.streams.Start(startCommand("thousand"))
	f.Fuzz(func(t *testing.T, input []byte) {
		nc, err := net.Dial("tcp", w.identity.LocalAddress)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(deadline))
		// The worker may close the connection before all is written.
		_, _ = nc.Write(input)
		_ = nc.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, nc); err != nil && isTimeout(err) {
			t.Fatal("the connection does not end")
		}
	})
}

// A reader that opens channels to a missing stream and closes them at once has no more searches under way than
// it may have channels.
func TestOpeningsThatWereClosedAgainDoNotPileUp(t *testing.T) {
	w := startWorker(t, nil)
	r := dialTCP(t, w)
	before := runtime.NumGoroutine()
	o := startCommand("thousand")
	const rounds = 5 * serve.MaxChannels
	var batch []byte
	for range rounds {
		batch = append(batch, encoded(t, frame.Header{Type: frame.Open, Channel: 1}, opening(o))...)
		batch = append(batch, encoded(t, frame.Header{Type: frame.Close, Channel: 1}, nil)...)
	}
	if _, err := r.nc.Write(batch); err != nil {
		t.Fatal(err)
	}
	r.handled()
	if n := runtime.NumGoroutine() - before; n > serve.MaxChannels {
		t.Errorf("%d goroutines look for streams of channels that are closed", n)
	}
}

// An OPEN that is older than the current reader's, and finds its stream late, ends nothing. That is so even if the elements
// that it wants are no longer held.
func TestALateOpenDoesNotEndANondeterministicStream(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("thousand")
	o.Plan.Determinism = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
	o.Options.Mode = pecanv1.Mode_MODE_AT_MOST_ONCE
	w.streams.Start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatalf("%d elements", len(elements))
	}
	r.credit(1, 600, 1<<40)
	waitFor(t, "acknowledged elements are released", func() bool { return w.streams.Loads()[0].GetAcked() == 600 })
	if refusal := w.streams.Attach(t.Context(), opening(o), late{lease: o.GetLease()}); refusal == nil || refusal.Reason != reason.Closed {
		t.Errorf("the late OPEN was answered with %v", refusal)
	}
	request := opening(o)
	request.StartIndex = 600
	r.open(2, request)
	for {
		g, err := r.next()
		if err != nil || g.header.Channel == 2 && g.failure != nil {
			t.Fatalf("the stream was given up: %v, %v", g.failure, err)
		}
		if g.header.Channel == 2 {
			break
		}
	}
}

// late is a reader whose OPEN is older than all others.
type late struct{ lease uint64 }

func (l late) Lease() uint64      { return l.lease }
func (late) Asked() uint64        { return 0 }
func (late) Remainder() bool      { return false }
func (late) Bind(*window.Window)  {}
func (late) Wake()                {}
func (late) Refuse(*reason.Error) {}
