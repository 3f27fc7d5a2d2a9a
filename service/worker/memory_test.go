package worker

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestTheWindowIsBoundedInBytes(t *testing.T) {
	for name, bound := range map[string]int64{"large": 40 << 20, "endless": 2 << 20, "strings": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, func(c *Config) { c.WindowBytes = bound })
			w.streams.Start(startCommand(name))
			load := func() *pecanv1.WorkerHeartbeat_StreamLoad { return w.streams.Loads()[0] }
			settled := func() bool {
				before := load().GetProduced()
				time.Sleep(50 * time.Millisecond)
				after := load().GetProduced()
				return after > 0 && before == after
			}
			waitFor(t, "a full window", settled)
			// An element, or a frame with its table, may come on top.
			if bytes := load().GetWindowBytes(); bytes > bound+largeElement+512<<10 {
				t.Fatalf("%d bytes are ready, the bound is %d", bytes, bound)
			}
		})
	}
}

func TestStreamsThatEndedCountAgainstTheLimitAndBlockNobody(t *testing.T) {
	const limit = 12 << 20
	w := startWorker(t, func(c *Config) { c.WindowBytes = limit })
	// Each stream has about 10 MB that nobody reads. The first fits; the others get the rest, and one entry
	// each.
	for i := range uint32(4) {
		o := startCommand("hundreds")
		o.Id.Stream = i
		w.streams.Start(o)
		waitFor(t, "elements", func() bool {
			return !slices.ContainsFunc(w.streams.Loads(), func(load *pecanv1.WorkerHeartbeat_StreamLoad) bool { return load.GetProduced() == 0 })
		})
	}
	waitFor(t, "windows that do not grow", func() bool {
		before := w.streams.Load().WindowBytes
		time.Sleep(50 * time.Millisecond)
		return before == w.streams.Load().WindowBytes
	})
	if held := w.streams.Load().WindowBytes; held > limit+4*(1<<20) {
		t.Fatalf("%d bytes are held, the limit is %d", held, limit)
	}
	for i := range uint32(4) {
		o := startCommand("hundreds")
		o.Id.Stream = i
		r := dialTCP(t, w)
		r.open(1, opening(o))
		for n := uint64(0); n < 100; n++ {
			g, err := r.next()
			if err != nil || len(g.elements) != 1 {
				t.Fatal(g, err)
			}
			r.credit(1, n+1, 1<<40)
		}
	}
	waitFor(t, "the windows to empty", func() bool { return w.streams.Load().WindowBytes == 0 })
}

// peakAtRest polls how many bytes are held until the number is stable at atLeast or more. It returns the largest
// number.
func peakAtRest(t *testing.T, atLeast int64, look func() int64) (peak int64) {
	t.Helper()
	same := 0
	for last, end := int64(0), time.Now().Add(deadline); same < 100; time.Sleep(time.Millisecond) {
		held := look()
		if peak = max(peak, held); held != last || held < atLeast {
			last, same = held, 0
		} else {
			same++
		}
		if time.Now().After(end) {
			t.Fatalf("the windows do not come to rest: %d bytes", held)
		}
	}
	return peak
}

// Streams that fill their windows leave room for the buffers inside another stream's graph.
func TestProductionLeavesMemoryForTheBuffersOfGraphs(t *testing.T) {
	const limit = 16 * largeElement
	w := startWorker(t, func(c *Config) { c.WindowBytes = limit })
	// Until it is opened, this stream produces a single element, while its prefetch fills and stays full.
	ahead := startCommand("ahead")
	ahead.Prefetch = true
	w.streams.Start(ahead)
	waitFor(t, "the buffers of a graph that nobody reads", func() bool {
		w.streams.Sample()
		before := w.streams.Load().BufferedBytes
		time.Sleep(50 * time.Millisecond)
		w.streams.Sample()
		return before >= 3*largeElement && before == w.streams.Load().BufferedBytes
	})
	inside := w.streams.Load().BufferedBytes
	if inside > limit/2 {
		t.Fatalf("%d bytes are buffered in the graph, more than the half of %d that counts", inside, limit)
	}
	for i := range uint32(3) {
		o := startCommand("large")
		o.Id.Stream = 1 + i
		w.streams.Start(o)
	}
	// The windows hold four elements at least: each empty stream may produce one whatever the limit.
	peak := peakAtRest(t, 4*largeElement, func() int64 { return w.streams.Load().WindowBytes })
	// The buffers of the three graphs are not known before the first sample, and may come on top.
	if peak+inside > limit {
		t.Errorf("the windows held up to %d bytes beside %d in the buffers of a graph, the limit is %d", peak, inside, limit)
	}
}

func TestSharedMemoryIsUsedAgainAndBounded(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.SlotBytes = 4 * largeElement })
	o := startCommand("large")
	w.streams.Start(o)
	t.Run("slots that come back are used again", func(t *testing.T) {
		r := dialShared(t, w)
		request := opening(o)
		request.Credit = 1
		r.open(1, request)
		for i := range uint64(50) {
			g, err := r.next()
			if err != nil || g.header.Flags&frame.Shared == 0 || len(g.elements[0][0].bytes) != largeElement || g.elements[0][0].bytes[77] != 1 {
				t.Fatal(g.header, err)
			}
			r.credit(1, i+1, (i+1)*largeElement+1)
		}
		if len(r.slots) > 2 {
			t.Fatalf("%d slots for one element at a time", len(r.slots))
		}
		r.nc.Close()
	})
	t.Run("a reader that keeps its slots gets the rest through the socket", func(t *testing.T) {
		r := dialShared(t, w)
		r.keep = true
		again := opening(o)
		again.StartIndex = 50
		again.Credit = 8 * largeElement
		r.open(1, again)
		shared := 0
		for i := range uint64(8) {
			g, err := r.next()
			if err != nil || len(g.elements[0][0].bytes) != largeElement || g.elements[0][0].bytes[9_000_000] != 1 {
				t.Fatal(g.header, err)
			}
			if g.header.Flags&frame.Shared != 0 {
				shared++
			}
			r.credit(1, 51+i, 8*largeElement)
		}
		if shared == 0 || shared > 4 {
			t.Fatalf("%d of 8 elements came in shared memory of 4", shared)
		}
		r.nc.Close()
	})
	waitFor(t, "the slots to go with their connection", func() bool { return mapped(t, "pecan-slot") <= 6 })
}

// mapped counts mappings of this process whose name contains word. The readers of the test map slots too.
func mapped(t *testing.T, word string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), word)
}

func TestAnElementThatIsReadyDoesNotWaitForTheNext(t *testing.T) {
	// After its first element, this dataset filters forever.
	for _, name := range []string{"starved", "burst"} {
		t.Run(name, func(t *testing.T) {
			_, r := startOpen(t, startCommand(name))
			want := map[string]int{"starved": 1, "burst": 10}[name]
			got := 0
			for got < want {
				g, err := r.next()
				if err != nil {
					t.Fatal(err)
				}
				got += len(g.elements)
			}
		})
	}
}

func TestStoppedStreamsLeaveNothing(t *testing.T) {
	w := startWorker(t, nil)
	for round := range 30 {
		for i, name := range []string{"endless", "spinning", "large", "starved"} {
			o := startCommand(name)
			o.Id = &pecanv1.StreamId{JobId: "job", Epoch: uint64(round), Stream: uint32(i)}
			w.streams.Start(o)
			if round%2 == 0 {
				r := dialShared(t, w)
				r.open(1, opening(o))
				if name == "endless" || name == "large" {
					if _, err := r.next(); err != nil {
						t.Fatal(err)
					}
				}
				r.nc.Close()
			}
		}
		for i := range 4 {
			w.streams.Stop(&pecanv1.StopStream{Id: &pecanv1.StreamId{JobId: "job", Epoch: uint64(round), Stream: uint32(i)}})
		}
	}
	waitFor(t, "the runs to end", func() bool { return w.streams.Load().Running == 0 })
}
