package rewrite_test

import (
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// aheadOps returns the ops of a graph that compute elements before they are requested, or several at once.
func aheadOps(t *testing.T, def *tf.GraphDef) (ahead []string) {
	t.Helper()
	for _, n := range def.GetNode() {
		if o, ok := graph.ReadOptions(n); ok && (o.GetThreadingOptions().GetPrivateThreadpoolSize() > 0 || n.GetName() == "pecan_options" && o.GetAutotuneOptions().GetEnabled()) {
			ahead = append(ahead, n.GetName())
		}
		if op := n.GetOp(); rewrite.WorksAhead(op) || op == rewrite.PrefetchOp || op == rewrite.ParallelBatchOp {
			ahead = append(ahead, op)
		}
	}
	for _, f := range def.GetLibrary().GetFunction() {
		inside := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			inside[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			op := n.GetOp()
			if op == rewrite.PrefetchOp {
				if size, ok := nodedef.Int(inside[nodedef.InputNode(n.GetInput()[1])]); ok && size == 0 {
					continue
				}
			}
			if rewrite.WorksAhead(op) || op == rewrite.PrefetchOp {
				ahead = append(ahead, f.GetSignature().GetName()+"/"+op)
			}
		}
	}
	return ahead
}

func TestSerialGraphsComputeElementsOnRequest(t *testing.T) {
	written, parallel := 0, 0
	for name, g := range graphtest.All(t, "service/worker/testdata/*.graph") {
		p, err := split.MakePlan(g, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, AllowNondeterministic: true}, split.Env{})
		if err != nil {
			continue
		}
		at := rewrite.At{Source: -1, Mode: p.GetMode()}
		plain, err := rewrite.Instantiate(g, p, at)
		if err != nil {
			continue
		}
		for _, keyed := range []bool{false, true} {
			at.Serial, at.Keyed = true, keyed
			serial, err := rewrite.Instantiate(g, p, at)
			if reason.Is(err, reason.Unsupported) && strings.Contains(err.Error(), "one element at a time") {
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			written++
			if len(aheadOps(t, graphtest.Decode(t, plain.A))) > 0 {
				parallel++
			}
			if ahead := aheadOps(t, graphtest.Decode(t, serial.A)); len(ahead) > 0 {
				t.Errorf("%s, keyed: %t: %v", name, keyed, ahead)
			}
		}
	}
	if written < 120 || parallel < 16 {
		t.Errorf("only %d graphs were written, %d of them parallel without Serial", written, parallel)
	}
}
