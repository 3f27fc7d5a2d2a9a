package ordering_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// damage makes one small change to a graph: another input, another op, another node's attributes, or a removed one.
func damage(r *rand.Rand, def *tf.GraphDef) {
	nodes := def.Node
	if fs := def.GetLibrary().GetFunction(); len(fs) > 0 && r.IntN(3) > 0 {
		nodes = fs[r.IntN(len(fs))].NodeDef
	}
	if len(nodes) == 0 {
		return
	}
	n, other := nodes[r.IntN(len(nodes))], nodes[r.IntN(len(nodes))]
	switch r.IntN(5) {
	case 0:
		if len(n.Input) > 0 && len(other.Input) > 0 {
			n.Input[r.IntN(len(n.Input))] = other.Input[r.IntN(len(other.Input))]
		}
	case 1:
		n.Op = other.Op
	case 2:
		if n.Attr != nil {
			maps.Copy(n.Attr, other.GetAttr())
		}
	case 3:
		if keys := slices.Sorted(maps.Keys(n.Attr)); len(keys) > 0 {
			delete(n.Attr, keys[r.IntN(len(keys))])
		}
	case 4:
		for _, key := range slices.Sorted(maps.Keys(n.Attr)) {
			if shapes := n.Attr[key].GetList().GetShape(); len(shapes) > 0 {
				shapes[r.IntN(len(shapes))] = &tf.TensorShapeProto{UnknownRank: r.IntN(2) == 0}
			}
		}
	}
}

// A trainer may send any graph, so Propose must not crash.
func TestProposeReturnsForDamagedGraphs(t *testing.T) {
	planned := 0
	for _, name := range []string{"steps", "badly_ordered", "changes_of_any_size", "two_seed_generators", "lookup", "padded"} {
		data := graphtest.Read(t, name)
		r := rand.New(rand.NewPCG(1, uint64(len(name))))
		for range 150 {
			var def tf.GraphDef
			if err := proto.Unmarshal(data, &def); err != nil {
				t.Fatal(err)
			}
			for range 1 + r.IntN(3) {
				damage(r, &def)
			}
			damaged, err := proto.Marshal(&def)
			if err != nil {
				t.Fatal(err)
			}
			g, err := graph.Parse(damaged, graph.Limits{})
			if err != nil {
				continue
			}
			asked := options(pecanv1.OrderTolerance(1 + r.IntN(3)))
			plan, err := split.MakePlan(g, asked, split.Env{})
			if err != nil {
				continue
			}
			other := &pecanv1.MeasuredOrder{Nodes: randomMetrics(r, g)}
			for _, node := range other.Nodes {
				other.Order = append(other.Order, node.GetNode())
			}
			proposal, err := ordering.Propose(g, plan, asked, ordering.Measured{Nodes: randomMetrics(r, g), Other: other})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(proposal.Order) > 0 && slices.Contains(proposal.Order, "") {
				t.Errorf("%s: %v", name, proposal.Order)
			}
			planned++
		}
	}
	if planned < 100 {
		t.Errorf("only %d damaged graphs were planned", planned)
	}
}
