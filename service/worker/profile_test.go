package worker

import (
	"testing"
)

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
