package client

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const largeElement = 9600000

// cpuSeconds returns the CPU time of the process.
func cpuSeconds(b *testing.B) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func perGB(b *testing.B, before float64) {
	b.ReportMetric((cpuSeconds(b)-before)/(float64(b.N)*largeElement/1e9), "cpu-s/GB")
}

// BenchmarkRawSocket is the limit: one goroutine writes the same buffer, one reads into the same buffer.
func BenchmarkRawSocket(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		payload := make([]byte, largeElement)
		for {
			if _, err := c.Write(payload); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	into := make([]byte, largeElement)
	b.SetBytes(largeElement)
	before := cpuSeconds(b)
	for b.Loop() {
		if _, err := io.ReadFull(c, into); err != nil {
			b.Fatal(err)
		}
	}
	perGB(b, before)
}

// rawWriter writes the same DATA frames forever, as fast as credits allow.
type rawWriter struct {
	listener net.Listener
	payload  []byte
	elements uint64
	width    uint64
}

func newRawWriter(b *testing.B, elements, width uint64) *rawWriter {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	w := &rawWriter{listener: listener, payload: make([]byte, elements*width), elements: elements, width: width}
	b.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go w.serve(c)
		}
	}()
	return w
}

func (w *rawWriter) serve(c net.Conn) {
	defer c.Close()
	r := frame.NewReader(c)
	credits := map[uint32]chan frame.Header{}
	shut := func(channel uint32) {
		close(credits[channel])
		delete(credits, channel)
	}
	for {
		h, meta, err := r.Next()
		if err != nil {
			for channel := range credits {
				shut(channel)
			}
			return
		}
		switch h.Type {
		case frame.Hello:
			welcome, _ := proto.Marshal(&pecanv1.DataWelcome{WorkerId: "raw"})
			_, _ = c.Write(frame.Append(nil, frame.Header{Type: frame.Welcome}, welcome))
		case frame.Open:
			open := &pecanv1.OpenStream{}
			_ = proto.Unmarshal(meta, open)
			credits[h.Channel] = make(chan frame.Header, 1<<16)
			go w.send(c, h, open, credits[h.Channel])
		case frame.Credit:
			credits[h.Channel] <- h
		case frame.Close:
			shut(h.Channel)
		}
	}
}

func (w *rawWriter) send(c net.Conn, h frame.Header, open *pecanv1.OpenStream, credits <-chan frame.Header) {
	table := &frame.Table{Components: 1, Rows: []frame.Tensor{{DType: 4, Dims: []uint64{w.width}, Bytes: w.elements * w.width}}}
	if w.width == 8 {
		table.Rows[0] = frame.Tensor{DType: 9, Bytes: w.elements * w.width}
	}
	meta := frame.AppendTable(nil, 0, table)
	credit, sent, index := open.GetCredit(), uint64(0), open.GetStartIndex()
	var head []byte
	for {
		for sent >= credit {
			c, ok := <-credits
			if !ok {
				return
			}
			credit = c.RawLen
		}
		for more := true; more; {
			select {
			case c, ok := <-credits:
				if !ok {
					return
				}
				credit = c.RawLen
			default:
				more = false
			}
		}
		n := uint64(len(w.payload))
		head = frame.Append(head[:0], frame.Header{
			Type: frame.Data, Flags: frame.Columns, Channel: h.Channel, Count: uint32(w.elements), Index: index, Lease: open.GetLease(), PayloadLen: n, RawLen: n,
		}, meta)
		buffers := net.Buffers{head, w.payload}
		if _, err := buffers.WriteTo(c); err != nil {
			return
		}
		sent += n
		index += w.elements
	}
}

func benchmarkIteration(b *testing.B, w *rawWriter, options IterOptions) *Iteration {
	d := startDispatcher(b)
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{
			Lease: 1, WorkerNumber: numberOf(&pecanv1.WorkerAddress{WorkerId: "raw", Tcp: w.listener.Addr().String()}),
		}}}
	}
	return open(b, d, func(c *Config) {
		pool, err := buffer.NewPool(buffer.Config{})
		if err != nil {
			b.Fatal(err)
		}
		c.Pool = pool
	}).Open(options)
}

// BenchmarkLargeElements reads elements of 9.6 MB over TCP on one machine.
func BenchmarkLargeElements(b *testing.B) {
	it := benchmarkIteration(b, newRawWriter(b, 1, largeElement), IterOptions{})
	b.SetBytes(largeElement)
	before := cpuSeconds(b)
	dequeue(b, it)
	perGB(b, before)
}

// dequeue takes one element in each round of a benchmark.
func dequeue(b *testing.B, it *Iteration) {
	for b.Loop() {
		elements, status, err := it.NextElement(testDeadline)
		if status != Ready {
			b.Fatal(status, err)
		}
		elements.Release()
	}
}

// BenchmarkSmallElements reads scalars, 1024 in a frame, and dequeues them one by one.
func BenchmarkSmallElements(b *testing.B) {
	it := benchmarkIteration(b, newRawWriter(b, 1024, 8), IterOptions{})
	dequeue(b, it)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "elements/s")
}

// BenchmarkSmallElementsInBlocks dequeues the same scalars as blocks.
func BenchmarkSmallElementsInBlocks(b *testing.B) {
	it := benchmarkIteration(b, newRawWriter(b, 1024, 8), IterOptions{})
	for b.Loop() {
		elements, status, err := it.NextBlock(1024, testDeadline)
		if status != Ready {
			b.Fatal(status, err)
		}
		elements.Release()
	}
	b.ReportMetric(1024*float64(b.N)/b.Elapsed().Seconds(), "elements/s")
}

// BenchmarkFramesOfOneElement is the worst case: each element in a frame of its own.
func BenchmarkFramesOfOneElement(b *testing.B) {
	it := benchmarkIteration(b, newRawWriter(b, 1, 8), IterOptions{})
	dequeue(b, it)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "elements/s")
}
