package worker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

func TestBuffersOfTheGraphCountAgainstTheWindow(t *testing.T) {
	const limit = 8 * largeElement
	w := startWorker(t, func(c *Config) { c.WindowBytes = limit })
	o := startCommand("ahead")
	w.streams.Start(o)
	waitFor(t, "elements in the buffer of the graph's prefetch", func() bool {
		w.streams.Sample()
		return w.streams.Load().BufferedBytes >= 3*largeElement
	})
	if room := w.streams.WindowLimit(); room > limit-3*largeElement || room < limit/2 {
		t.Fatalf("the windows may hold %d of %d bytes beside a prefetch of %d", room, limit, w.streams.Load().BufferedBytes)
	}
	w.streams.Stop(&pecanv1.StopStream{Id: o.GetId()})
	waitFor(t, "the run to end", func() bool { return w.streams.Load().Running == 0 })
	waitFor(t, "the buffer to go", func() bool { return w.streams.Load().BufferedBytes == 0 })
}

// A window that fills takes elements as fast as the graph's buffers fill. The buffers are full only when the
// window stops.
func TestAWindowThatFillsLeavesRoomForBuffersThatFillAfterIt(t *testing.T) {
	const limit = 16 * largeElement
	w := startWorker(t, func(c *Config) { c.WindowBytes = limit })
	w.streams.Start(startCommand("ahead"))
	peak := peakAtRest(t, 8*largeElement, func() int64 {
		w.streams.Sample()
		return w.streams.Load().WindowBytes + w.streams.Load().BufferedBytes
	})
	// TensorFlow's estimate of an element's size changes by some hundred bytes, and Pecan has no better one.
	if peak > limit+16<<10 {
		t.Errorf("the window and the graph's buffers held up to %d bytes, the limit is %d", peak, limit)
	}
}

func TestMetricsAreReportedPerNode(t *testing.T) {
	w, r := startOpen(t, startCommand("mapped"))
	r.stream(0)
	waitFor(t, "the end", func() bool { return w.streams.HeldStreams()[0].GetEnded() })
	w.streams.Totals.Resend()
	nodes := w.streams.Totals.Unreported("job").GetNodes()
	if len(nodes) < 3 {
		t.Fatalf("%d nodes", len(nodes))
	}
	byOp := map[string][]uint64{}
	for _, node := range nodes {
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

// The steps in the function of an interleave are read from the iterators that are open. Their elements and times fit each other.
func TestStepsInFunctionsAreMeasured(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.WindowBytes = 1 << 20 })
	useGraphs(w, registered{dataset.NewStore(func(context.Context, string) ([]byte, error) {
		return os.ReadFile(filepath.Join("testdata", "order_in_function.graph"))
	})})
	o := startCommand("in_function")
	w.streams.Start(o)
	var caller *pecanv1.NodeMetrics
	waitFor(t, "readings of steps in the function", func() bool {
		w.streams.Sample()
		w.streams.Totals.Resend()
		for _, node := range w.streams.Totals.Unreported("job").GetNodes() {
			if len(node.GetInside()) > 0 {
				caller = node
			}
		}
		return caller.GetInsideElements() >= 20
	})
	w.streams.Stop(&pecanv1.StopStream{Id: o.GetId()})
	inside, sum := map[string]*pecanv1.NodeMetrics{}, 0.0
	for _, node := range caller.GetInside() {
		t.Log(node)
		inside[strings.TrimPrefix(node.GetNode(), caller.GetNode()+":")], sum = node, sum+node.GetSelfCpuS()
	}
	expensive, crop := inside["ParallelMapDatasetV2"], inside["MapDataset_1"]
	if len(inside) != 4 || expensive == nil || crop == nil {
		t.Fatalf("the steps are %v", inside)
	}
	if crop.GetElements() != caller.GetInsideElements() || expensive.GetElements() < crop.GetElements() {
		t.Errorf("%d expensive elements and %d crops; %d of %d elements were read", expensive.GetElements(), crop.GetElements(), caller.GetInsideElements(), caller.GetElements())
	}
	if expensive.GetSelfCpuS() < 2*crop.GetSelfCpuS() || caller.GetSelfCpuS() < sum {
		t.Errorf("the expensive step took %.4g s, the crop %.4g s, all of them %.4g s, the interleave with them %.4g s", expensive.GetSelfCpuS(), crop.GetSelfCpuS(), sum, caller.GetSelfCpuS())
	}
	if each := expensive.GetBytesOut() / expensive.GetElements(); each < 96*96*3*4 {
		t.Errorf("an expensive element has %d bytes", each)
	}
}
