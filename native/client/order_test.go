package client

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// wantTurns checks the round-robin order of a deterministic pass: element 0 of each stream, then element 1, and so on.
func wantTurns(t *testing.T, all []got, counts []uint64) {
	t.Helper()
	at := 0
	for index := uint64(0); at < len(all); index++ {
		for s, count := range counts {
			if index >= count {
				continue
			}
			if at >= len(all) || all[at].stream != uint32(s) || all[at].index != index {
				t.Fatalf("place %d has element %+v, want element %d of stream %d", at, all[at], index, s)
			}
			at++
		}
	}
}

func TestDeterministicModeReadsStreamsRoundRobin(t *testing.T) {
	counts := []uint64{7, 0, 12, 3}
	for _, workers := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) {
				d.plan.NumStreams = 4
				d.options.Mode = pecanv1.Mode_MODE_DETERMINISTIC
			})
			var all []*testWorker
			for range workers {
				all = append(all, startWorker(t, func(_ uint64, s uint32) (testStream, bool) {
					if s == 4 {
						return testStream{count: 2}, true
					}
					return testStream{count: counts[s], perFrame: uint64(s)}, true
				}))
			}
			d.updateOf = spread(5, all...)
			elements, err := read(t, open(t, d).Open(IterOptions{}))
			if err != nil || len(elements) != 24 {
				t.Fatalf("%d elements, %v", len(elements), err)
			}
			wantTurns(t, elements[:22], counts)
			// The closing stream comes after the end of all others.
			wantAll(t, elements, 7, 0, 12, 3, 2)
			if elements[22].stream != 4 || elements[23].stream != 4 {
				t.Errorf("the closing stream's elements are not the last: %+v", elements[20:])
			}
		})
	}
}

func TestADeterministicPassWaitsForTheStreamInTurn(t *testing.T) {
	hold := make(chan struct{})
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
	d.updateOf = spread(2, startWorker(t, func(_ uint64, s uint32) (testStream, bool) {
		if s == 1 {
			return testStream{count: 4, hold: hold, holdAt: 1}, true
		}
		return testStream{count: 4}, true
	}))
	it := open(t, d).Open(IterOptions{Deterministic: true})
	first, err := readUpTo(t, it, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, status, _ := it.NextElement(30 * time.Millisecond); status != NotYet {
		t.Errorf("the next stream's turn was not waited for: %v", status)
	}
	close(hold)
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantTurns(t, append(first, rest...), []uint64{4, 4})
}

// A deterministic pass has an outage if the stream in turn is unreachable. Other unreachable streams do not matter.
func TestInDeterministicModeOnlyTheStreamInTurnCausesAnOutage(t *testing.T) {
	const limit = 200 * time.Millisecond
	stopped := startWorker(t, same(testStream{count: 4}))
	stopped.stop()
	two := func(first, second *pecanv1.WorkerAddress) func(uint64) *pecanv1.EpochUpdate {
		return func(uint64) *pecanv1.EpochUpdate {
			u := &pecanv1.EpochUpdate{TotalStreams: 2, StreamsFinal: true, Waiting: "all 2 workers are busy"}
			for s, worker := range []*pecanv1.WorkerAddress{first, second} {
				if worker != nil {
					u.Streams = append(u.Streams, &pecanv1.ConsumerStream{Stream: uint32(s), Lease: 1, Assignment: 1, WorkerNumber: numberOf(worker)})
				}
			}
			return u
		}
	}
	begin := func(t *testing.T, live *testWorker, first, second *pecanv1.WorkerAddress) *Iteration {
		d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
		d.updateOf = two(first, second)
		it := open(t, d).Open(IterOptions{Deterministic: true, Timeout: limit})
		eventually(t, "the other stream's state is known", func() bool {
			for _, st := range it.epoch().State().Streams {
				if st.Number == 1 {
					return live == nil && st.LastError != nil || live != nil && st.Queued > 0
				}
			}
			return false
		})
		return it
	}
	t.Run("a worker out of reach is not hidden by another stream's", func(t *testing.T) {
		hold := make(chan struct{})
		live := startWorker(t, same(testStream{count: 4, hold: hold, holdAt: 2}))
		t.Cleanup(func() { close(hold) })
		err := failure(t, begin(t, live, stopped.address(), live.address()))
		if !reason.Is(err, reason.Unavailable) || !strings.Contains(err.Error(), "stream 0") || !strings.Contains(err.Error(), stopped.tcp.Addr().String()) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("another stream's worker out of reach ends no wait", func(t *testing.T) {
		it := begin(t, nil, nil, stopped.address())
		for began := time.Now(); time.Since(began) < 3*limit; {
			if _, status, err := it.NextElement(limit / 20); status != NotYet {
				t.Fatalf("%v, %v", status, err)
			}
		}
	})
	t.Run("what is waited for is the stream in turn", func(t *testing.T) {
		hold := make(chan struct{})
		live := startWorker(t, same(testStream{count: 4, hold: hold}))
		t.Cleanup(func() { close(hold) })
		d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
		d.updateOf = spread(2, live, stopped)
		it := open(t, d).Open(IterOptions{Deterministic: true, Timeout: limit})
		eventually(t, "the live worker is computing it", func() bool { _, computing := it.Waiting(); return computing })
		eventually(t, "the other is out of reach", func() bool {
			streams := it.epoch().State().Streams
			return len(streams) == 2 && streams[1].Failures > 2
		})
		if _, computing := it.Waiting(); !computing {
			t.Errorf("waiting: %s", waiting(it))
		}
	})
}

func TestStreamsAreReadFairly(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 3 })
	d.updateOf = spread(3, startWorker(t, same(testStream{count: 100, perFrame: 10})))
	it := open(t, d).Open(IterOptions{})
	eventually(t, "all streams have come", func() bool {
		e := it.epoch()
		return e.State().Accepted == 300
	})
	taken := map[uint32]int{}
	all, err := readUpTo(t, it, 30)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		taken[g.stream]++
	}
	if taken[0] != 10 || taken[1] != 10 || taken[2] != 10 {
		t.Errorf("taken of each stream: %v", taken)
	}
}

func TestBlocksHaveTheirRowsInOrderWithAllComponents(t *testing.T) {
	for name, tc := range map[string]struct {
		perFrame      uint64
		deterministic bool
		max           int
		copied        bool
	}{
		"cut from a frame":                    {perFrame: 50, max: 8},
		"a whole frame":                       {perFrame: 8, max: 8},
		"gathered from frames of one element": {perFrame: 0, max: 8, copied: true},
		"gathered from small frames":          {perFrame: 3, max: 8, copied: true},
		"gathered from streams in turn":       {perFrame: 50, max: 8, deterministic: true, copied: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
			d.updateOf = spread(2, startWorker(t, same(testStream{count: 40, perFrame: tc.perFrame, pad: 10, text: true})))
			it := open(t, d).Open(IterOptions{Deterministic: tc.deterministic})
			eventually(t, "all has come", func() bool {
				e := it.epoch()
				return e.State().Accepted == 80
			})
			next, calls, elementsTaken := map[uint64]uint64{}, 0, 0
			for {
				elements, status, err := it.NextBlock(tc.max, 5*time.Second)
				if status == End {
					break
				}
				if status != Ready {
					t.Fatal(status, err)
				}
				calls++
				elementsTaken += elements.Count
				checkBlock(t, elements, next, tc.max)
				elements.Release()
			}
			if elementsTaken != 80 || calls > 14 {
				t.Errorf("%d elements in %d calls", elementsTaken, calls)
			}
		})
	}
}

func checkBlock(t *testing.T, elements *element.Elements, next map[uint64]uint64, max int) {
	t.Helper()
	if len(elements.Tensors) != 3 || elements.Count > max {
		t.Fatalf("%d components, %d elements", len(elements.Tensors), elements.Count)
	}
	ids, pads, texts := &elements.Tensors[0], &elements.Tensors[1], &elements.Tensors[2]
	if fmt.Sprint(ids.Dims, pads.Dims, texts.Dims) != fmt.Sprintf("[%d] [%d 10] [%d]", elements.Count, elements.Count, elements.Count) {
		t.Fatalf("dims %v %v %v of %d elements", ids.Dims, pads.Dims, texts.Dims, elements.Count)
	}
	at := 0
	for i := range elements.Count {
		v := binary.LittleEndian.Uint64(ids.Data[8*i:])
		stream, index := v>>32&0xffff, v&0xffffffff
		if index != next[stream] {
			t.Errorf("stream %d: element %d where %d is next", stream, index, next[stream])
		}
		next[stream]++
		if !bytes.Equal(pads.Data[10*i:10*i+10], bytes.Repeat([]byte{byte(index)}, 10)) {
			t.Errorf("element %d has the bytes %v", index, pads.Data[10*i:10*i+10])
		}
		n := texts.StringLength(i)
		if got := string(texts.Data[at : at+n]); got != fmt.Sprintf("text %d", index) {
			t.Errorf("element %d has the text %q", index, got)
		}
		at += n
	}
	if at != len(texts.Data) || texts.Strings() != elements.Count {
		t.Errorf("%d bytes of text, %d used", len(texts.Data), at)
	}
}

func TestABlockHasOneShapeOnly(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
	d.updateOf = spread(2, startWorker(t, func(_ uint64, s uint32) (testStream, bool) {
		return testStream{count: 6, pad: 3 + int(s)}, true
	}))
	it := open(t, d).Open(IterOptions{})
	all := 0
	for {
		elements, status, err := it.NextBlock(100, time.Second)
		if status == End {
			break
		}
		if status != Ready {
			t.Fatal(status, err)
		}
		if want := elements.Count * int(elements.Tensors[1].Dims[1]); len(elements.Tensors[1].Data) != want {
			t.Errorf("%d bytes for dims %v", len(elements.Tensors[1].Data), elements.Tensors[1].Dims)
		}
		all += elements.Count
		elements.Release()
	}
	if all != 12 {
		t.Errorf("%d elements", all)
	}
}

func TestRowsOutliveTheSession(t *testing.T) {
	for name, change := range map[string][]func(*testWorker){"TCP": nil, "shared memory": {withUnix}} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t)
			d.updateOf = spread(1, startWorker(t, same(testStream{count: 5, pad: 100000}), change...))
			job := open(t, d)
			it := job.Open(IterOptions{})
			elements, status, err := it.NextElement(5 * time.Second)
			if status != Ready {
				t.Fatal(status, err)
			}
			kept := elements.Buffer().Retain()
			data := elements.Tensors[1].Data
			elements.Release()
			elements.Release()
			if err := job.session.Close(); err != nil {
				t.Fatal(err)
			}
			if bytes.Count(data, []byte{0}) != 100000 {
				t.Error("the memory changed")
			}
			kept.Release()
		})
	}
}

func TestCreditBoundsWhatIsOutstanding(t *testing.T) {
	for name, change := range map[string][]func(*testWorker){"TCP": nil, "shared memory": {withUnix}} {
		t.Run(name, func(t *testing.T) {
			const size, budget = 64 + 10000, 100000
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
			w := startWorker(t, same(testStream{count: 200, pad: 10000}), change...)
			d.updateOf = spread(2, w)
			it := open(t, d).Open(IterOptions{MaxOutstandingBytes: budget})
			taken := int64(0)
			for i := range 200 {
				eventually(t, "the budget is used", func() bool { return w.sent.Load()-taken >= min(budget*3/5, 400*size-taken) })
				// Until the size of an element is known, each stream may exceed its share by one element.
				if out := w.sent.Load() - taken; out > budget+2*size || i > 20 && out > budget {
					t.Fatalf("%d bytes outstanding with a budget of %d", out, budget)
				}
				elements, status, err := it.NextElement(5 * time.Second)
				if status != Ready {
					t.Fatal(status, err)
				}
				elements.Release()
				taken += size
			}
		})
	}
}

func TestEmptyElementsAreBounded(t *testing.T) {
	failing := map[uint64]bool{}
	for i := range uint64(3 * epoch.ParkAt) {
		failing[i] = true
	}
	w := startWorker(t, same(testStream{count: 3 * epoch.ParkAt, failAt: failing}))
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	it := open(t, d).Open(IterOptions{})
	eventually(t, "the stream is parked", func() bool {
		streams := it.epoch().State().Streams
		return len(streams) == 1 && streams[0].Parked
	})
	failed := 0
	for {
		_, status, err := it.NextElement(5 * time.Second)
		if status == End {
			break
		}
		if status != Failed || !reason.Is(err, reason.ElementFailed) {
			t.Fatal(status, err)
		}
		failed++
	}
	if failed != 3*epoch.ParkAt || w.opens.Load() < 2 {
		t.Errorf("%d elements, opened %d times", failed, w.opens.Load())
	}
}
