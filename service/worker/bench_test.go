package worker

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

const largeElement = 9_600_000

// consume reads n elements. Like a trainer, it grants credit some elements ahead.
func consume(b *testing.B, r *reader, n int, credit uint64) {
	b.Helper()
	r.scratch = make([]byte, largeElement)
	got, bytes, reported := 0, uint64(0), uint64(0)
	for got < n {
		g, err := r.next()
		if err != nil {
			b.Fatal(err)
		}
		if g.header.Type != frame.Data {
			b.Fatalf("%v", g)
		}
		got += int(g.header.Count)
		bytes += g.header.RawLen
		if bytes-reported > credit/4 {
			r.credit(1, g.header.Index+uint64(g.header.Count), bytes+credit)
			reported = bytes
		}
	}
}

func benchmarkStream(b *testing.B, name string, dial func(testing.TB, *Worker) *reader, credit uint64) {
	w := startWorker(b, nil)
	o := startCommand(name)
	w.streams.Start(o)
	r := dial(b, w)
	request := opening(o)
	request.Credit = credit
	r.open(1, request)
	consume(b, r, 1, credit)
	b.ResetTimer()
	cpu := cpuSeconds()
	consume(b, r, b.N, credit)
	// This is the CPU of both ends: the reader runs in this process too.
	if name == "large" {
		b.ReportMetric((cpuSeconds()-cpu)/(float64(b.N)*largeElement/1e9), "cpu-s/GB")
	} else {
		b.ReportMetric((cpuSeconds()-cpu)/float64(b.N)*1e6, "cpu-us/element")
	}
}

// BenchmarkFirstElement is the time from a StartStream to the first element at a connected reader.
func BenchmarkFirstElement(b *testing.B) {
	w := startWorker(b, nil)
	r := dialTCP(b, w)
	channel := uint32(0)
	for b.Loop() {
		channel++
		o := startCommand("mapped")
		o.Id.Epoch = uint64(channel)
		w.streams.Start(o)
		request := opening(o)
		request.Credit = 1
		r.open(channel, request)
		for {
			g, err := r.next()
			if err != nil {
				b.Fatal(err)
			}
			if g.header.Channel == channel {
				break
			}
		}
		r.send(frame.Header{Type: frame.Close, Channel: channel}, nil)
		w.streams.Stop(&pecanv1.StopStream{Id: o.GetId()})
	}
}

// BenchmarkOpenStream is the CPU of a further stream of a job, from its StartStream to the end of its one batch at a
// connected reader. As many streams run as there are cores. cpu-ms/opening leaves out the batch, whose CPU follows from
// streams of four batches.
func BenchmarkOpenStream(b *testing.B) {
	for _, name := range []string{"light", "images", "records"} {
		b.Run(name, func(b *testing.B) {
			// The speed of a shared host changes within seconds, so both kinds run by turns.
			const turns = 5
			four, one := 0.0, 0.0
			for range turns {
				four += openStreams(b, name, 4, max(1, b.N/turns)) / turns
				one += openStreams(b, name, 16, max(1, b.N/turns)) / turns
			}
			b.ReportMetric(one, "cpu-ms/stream")
			b.ReportMetric(one-(four-one)/3, "cpu-ms/opening")
		})
	}
}

// openStreams runs a number of streams of a dataset of sixteen batches that is divided into n streams, after some to warm up. It
// returns the milliseconds of CPU per stream.
func openStreams(b *testing.B, name string, n int32, number int) float64 {
	w := startWorker(b, nil)
	graphs := dataset.NewStore(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("testdata", "opened_"+name+".graph"))
	})
	useGraphs(w, byName{graphs})
	parsed, err := graphs.Get(b.Context(), name)
	if err != nil {
		b.Fatal(err)
	}
	options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC}
	plan, err := split.MakePlan(parsed, options, split.Env{})
	if err != nil {
		b.Fatal(err)
	}
	plan.NumStreams = n
	plan.Hash = split.PlanHash(plan)
	r := dialTCP(b, w)
	running := map[uint32]*pecanv1.StartStream{}
	start := func(channel uint32) {
		o := startCommand(name)
		o.Id.Epoch, o.Id.Stream = uint64(channel)/uint64(n)+1, channel%uint32(n)
		o.Plan, o.Options = plan, options
		w.streams.Start(o)
		r.open(channel+1, opening(o))
		running[channel+1] = o
	}
	const warmUp = 32
	last := uint32(number) + warmUp
	next := uint32(runtime.NumCPU())
	for channel := range next {
		start(channel)
	}
	cpu := cpuSeconds()
	for ended := uint32(0); ended < last; {
		g, err := r.next()
		if err != nil || g.failure != nil {
			b.Fatal(err, g.failure)
		}
		if g.header.Type != frame.End {
			continue
		}
		if ended++; ended == warmUp {
			cpu = cpuSeconds()
			b.ResetTimer()
		}
		r.send(frame.Header{Type: frame.Close, Channel: g.header.Channel}, nil)
		w.streams.Stop(&pecanv1.StopStream{Id: running[g.header.Channel].GetId()})
		delete(running, g.header.Channel)
		if next < last {
			start(next)
			next++
		}
	}
	return (cpuSeconds() - cpu) / float64(number) * 1e3
}

func BenchmarkLargeOverTCP(b *testing.B) {
	b.SetBytes(largeElement)
	benchmarkStream(b, "large", dialTCP, 4*largeElement)
}

func BenchmarkLargeThroughSharedMemory(b *testing.B) {
	b.SetBytes(largeElement)
	benchmarkStream(b, "large", dialShared, 4*largeElement)
}

func BenchmarkScalarsOverTCP(b *testing.B) { benchmarkStream(b, "endless", dialTCP, 1<<20) }

func BenchmarkScalarsThroughSharedMemory(b *testing.B) {
	benchmarkStream(b, "endless", dialShared, 1<<20)
}

// BenchmarkRawTCP is the limit to compare BenchmarkLargeOverTCP with.
func BenchmarkRawTCP(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	go func() {
		nc, err := listener.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		payload := make([]byte, largeElement)
		for {
			buffers := net.Buffers{payload}
			if _, err := buffers.WriteTo(nc); err != nil {
				return
			}
		}
	}()
	nc, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	payload := make([]byte, largeElement)
	b.SetBytes(largeElement)
	b.ResetTimer()
	for b.Loop() {
		if _, err := io.ReadFull(nc, payload); err != nil {
			b.Fatal(err)
		}
	}
}
