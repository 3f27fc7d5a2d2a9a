package worker

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestWhatTheGraphBuffersItselfCountsAgainstTheWindow(t *testing.T) {
	const limit = 8 * largeElement
	w := serve(t, func(c *Config) { c.WindowBytes = limit })
	o := order("ahead")
	w.start(o)
	waitFor(t, "elements in the buffer of the graph's prefetch", func() bool {
		w.held()[0].run.sample()
		return w.insideBytes.Load() >= 3*largeElement
	})
	if room := w.windowLimit(); room > limit-3*largeElement || room < limit/2 {
		t.Fatalf("the windows may hold %d of %d bytes beside a prefetch of %d", room, limit, w.insideBytes.Load())
	}
	w.stop(&pecanv1.StopStream{Id: o.GetId()})
	waitFor(t, "the run to end", func() bool { return w.runs.Load() == 0 })
	waitFor(t, "the buffer to go", func() bool { return w.insideBytes.Load() == 0 })
}

// A window that fills takes from the graph's buffers as fast as they fill: they are full only when it rests.
func TestAWindowThatFillsLeavesRoomForBuffersThatFillAfterIt(t *testing.T) {
	const limit = 16 * largeElement
	w := serve(t, func(c *Config) { c.WindowBytes = limit })
	w.start(order("ahead"))
	filling := w.held()[0].run
	peak := peakAtRest(t, 8*largeElement, func() int64 {
		filling.sample()
		return w.windowBytes.Load() + w.insideBytes.Load()
	})
	// What TensorFlow counts for an element changes by some hundred bytes as it learns: it has no more than that to go by.
	if peak > limit+16<<10 {
		t.Errorf("the window and the graph's buffers held up to %d bytes, the limit is %d", peak, limit)
	}
}

func TestFiguresAreGivenPerNodeOfTheGraph(t *testing.T) {
	w := serve(t, nil)
	o := order("mapped")
	w.start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	r.stream(0)
	run := w.held()[0].run
	waitFor(t, "the end", func() bool { return run.state().ended })
	waitFor(t, "the last figures", func() bool { return len(run.nodes()) >= 3 })
	byOp := map[string][]uint64{}
	for _, node := range run.nodes() {
		t.Log(node)
		byOp[node.GetOp()] = append(byOp[node.GetOp()], node.GetElements())
		if node.GetSelfCpuS() <= 0 {
			t.Errorf("%s took no time", node.GetNode())
		}
	}
	if len(byOp["RangeDataset"]) != 1 || len(byOp["ParallelMapDatasetV2"]) != 1 || len(byOp["MapDataset"]) != 1 {
		t.Errorf("nodes by op: %v", byOp)
	}
	if n := byOp["MapDataset"]; len(n) == 1 && n[0] != 20 {
		t.Errorf("the last map made %d elements", n[0])
	}
}
