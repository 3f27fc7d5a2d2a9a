package ordering_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func parse(t testing.TB, data []byte) *graph.Graph {
	t.Helper()
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func options(tolerance pecanv1.OrderTolerance) *pecanv1.JobOptions {
	return &pecanv1.JobOptions{
		Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Order: pecanv1.Order_ORDER_AUTO, OrderTolerance: tolerance, AllowNondeterministic: true,
	}
}

func plan(t testing.TB, g *graph.Graph, options *pecanv1.JobOptions) *pecanv1.Plan {
	t.Helper()
	plan, err := split.MakePlan(g, options, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// measured returns metrics of the source and of the steps. of has elements and microseconds per element, by label.
func measured(g *graph.Graph, of map[string][2]float64) (nodes []*pecanv1.NodeMetrics) {
	steps := graphorder.TraitsOf(g)
	nodes = append(nodes, &pecanv1.NodeMetrics{Node: steps[0].Input, Elements: 1000, BytesOut: 8000})
	for _, s := range steps {
		f, known := of[s.Label]
		if !known {
			f = [2]float64{elementsOf(nodes), 1}
		}
		nodes = append(nodes, &pecanv1.NodeMetrics{Node: s.Node, Op: s.Op, Elements: uint64(f[0]), SelfCpuS: f[0] * f[1] / 1e6, BytesOut: uint64(f[0]) * 49160})
	}
	return nodes
}

func elementsOf(nodes []*pecanv1.NodeMetrics) float64 {
	return float64(nodes[len(nodes)-1].GetElements())
}

var badly = map[string][2]float64{"expensive": {1000, 2000}, "mirror": {1000, 300}, "next_label": {1000, 20}, "some": {250, 20}, "crop": {250, 15}}

// labels returns the author's names of the steps of an order.
func labels(g *graph.Graph, order []string) string {
	var names []string
	for _, name := range order {
		for _, s := range graphorder.TraitsOf(g) {
			switch {
			case s.Node != name:
			case s.Label != "":
				names = append(names, s.Label)
			default:
				names = append(names, s.Op)
			}
		}
	}
	return strings.Join(names, " ")
}

func TestStepsThatShrinkElementsMoveUpstream(t *testing.T) {
	g := graphtest.Parse(t, "badly_ordered")
	asked := options(pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT)
	proposal, err := ordering.Propose(g, plan(t, g, asked), asked, ordering.Measured{Nodes: measured(g, badly)})
	if err != nil {
		t.Fatal(err)
	}
	// The last bits of a hyperbolic tangent depend on a value's position in memory, and the crop moves values.
	if got := labels(g, proposal.Order); got != "source next_label PrefetchDataset some expensive crop mirror PrefetchDataset" {
		t.Errorf("under exact the order is %q: %s", got, proposal.Why)
	}
	asked = options(pecanv1.OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED)
	if proposal, err = ordering.Propose(g, plan(t, g, asked), asked, ordering.Measured{Nodes: measured(g, badly)}); err != nil {
		t.Fatal(err)
	}
	if got := labels(g, proposal.Order); got != "source next_label PrefetchDataset some crop expensive mirror PrefetchDataset" {
		t.Errorf("the order is %q: %s", got, proposal.Why)
	}
	if !(proposal.PredictedAfter < proposal.PredictedBefore/4) || !strings.Contains(proposal.Why, "% less") {
		t.Errorf("from %g to %g: %s", proposal.PredictedBefore, proposal.PredictedAfter, proposal.Why)
	}
	for i, s := range proposal.Steps {
		if s.GetNode() != graphorder.TraitsOf(g)[i].Node || proposal.Order[s.GetPlace()] != s.GetNode() || s.GetReason() == "" || len(s.GetTraits()) == 0 && i > 0 {
			t.Errorf("step %d: %v", i, s)
		}
		if s.GetFigures().GetElements() == 0 {
			t.Errorf("step %d has no metrics", i)
		}
	}
}

func TestNoStepMovesForASmallOrUnknownGain(t *testing.T) {
	g := graphtest.Parse(t, "badly_ordered")
	asked := options(pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY)
	for why, nodes := range map[string][]*pecanv1.NodeMetrics{
		"not known yet":                    nil,
		"would save at least 4 % of their": measured(g, map[string][2]float64{"source": {1000, 1e6}, "some": {1000, 1}, "crop": {1000, 1}}),
	} {
		proposal, err := ordering.Propose(g, plan(t, g, asked), asked, ordering.Measured{Nodes: nodes})
		if err != nil {
			t.Fatal(err)
		}
		if len(proposal.Order) > 0 || !strings.Contains(proposal.Why, why) || proposal.PredictedAfter != proposal.PredictedBefore {
			t.Errorf("want %q: %v: %s", why, proposal.Order, proposal.Why)
		}
	}
}

func TestProposeRefusesThePlanOfAnotherDataset(t *testing.T) {
	g := graphtest.Parse(t, "badly_ordered")
	if _, err := ordering.Propose(g, &pecanv1.Plan{Fingerprint: "another"}, options(0), ordering.Measured{}); err == nil {
		t.Error("Propose accepted the plan of another dataset")
	}
}

// A worker may send any metrics.
func TestProposeAcceptsArbitraryMetrics(t *testing.T) {
	moved := 0
	for name, g := range graphtest.All(t) {
		for seed := range uint64(6) {
			rng := rand.New(rand.NewPCG(seed, 1))
			asked := options(pecanv1.OrderTolerance(seed % 4))
			if seed == 5 {
				asked.Order = pecanv1.Order_ORDER_PAPER
			}
			plan, err := split.MakePlan(g, asked, split.Env{})
			if err != nil {
				break
			}
			nodes := randomMetrics(rng, g)
			proposal, err := ordering.Propose(g, plan, asked, ordering.Measured{Nodes: nodes})
			if err != nil {
				t.Fatalf("%s, seed %d: %v", name, seed, err)
			}
			again, _ := ordering.Propose(g, plan, asked, ordering.Measured{Nodes: nodes})
			if !slices.Equal(again.Order, proposal.Order) || again.Why != proposal.Why {
				t.Errorf("%s, seed %d: %v and then %v", name, seed, proposal.Order, again.Order)
			}
			if len(proposal.Order) > 0 {
				moved++
				named := pecanv1.NewEpochOrder(plan, proposal.Order)
				if order, err := ordering.Named(g, plan, asked, named); err != nil || !slices.Equal(order, proposal.Order) {
					t.Errorf("%s, seed %d: Named refuses the proposed order: %v", name, seed, err)
				}
				if _, err := graphorder.Reorder(g, proposal.Order); err != nil {
					t.Errorf("%s, seed %d: %v", name, seed, err)
				}
			}
			for _, s := range proposal.Steps {
				if s.GetReason() == "" {
					t.Errorf("%s, seed %d: %s has no reason", name, seed, s.GetNode())
				}
			}
		}
	}
	if moved < 2 {
		t.Errorf("only %d orders were proposed", moved)
	}
}

func randomMetrics(rng *rand.Rand, g *graph.Graph) (nodes []*pecanv1.NodeMetrics) {
	for _, s := range graphorder.TraitsOf(g) {
		if rng.IntN(8) == 0 {
			continue
		}
		n := &pecanv1.NodeMetrics{Node: s.Node, Elements: uint64(rng.IntN(1000)), SelfCpuS: rng.Float64(), BytesOut: uint64(rng.IntN(1e6))}
		switch rng.IntN(20) {
		case 0:
			n.SelfCpuS = math.NaN()
		case 1:
			n.SelfCpuS = math.Inf(1)
		case 2:
			n.SelfCpuS = -1
		case 3:
			n.Elements, n.BytesOut = math.MaxUint64, math.MaxUint64
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// longDataset returns a dataset with the given number of nodes. It repeats the steps of another dataset.
func longDataset(t testing.TB, nodes int) []byte {
	t.Helper()
	var def tf.GraphDef
	if err := proto.Unmarshal(graphtest.Read(t, "badly_ordered"), &def); err != nil {
		t.Fatal(err)
	}
	g := graphtest.Parse(t, "badly_ordered")
	byName := map[string]*tf.NodeDef{}
	for _, n := range def.GetNode() {
		byName[n.GetName()] = n
	}
	var chain []*tf.NodeDef
	var last, result *tf.NodeDef
	for _, s := range graphorder.TraitsOf(g) {
		if slices.Contains([]string{"expensive", "mirror", "next_label", "some"}, s.Label) {
			chain = append(chain, byName[s.Node])
		}
		if s.Label == "crop" {
			result = byName[s.Node]
		}
	}
	last = byName[result.GetInput()[0]]
	for i := 0; len(def.GetNode()) < nodes; i++ {
		n := proto.Clone(chain[i%len(chain)]).(*tf.NodeDef)
		n.Name = fmt.Sprintf("%s/again_%d", n.GetName(), i)
		n.Input[0] = last.GetName()
		def.Node = append(def.Node, n)
		last = n
	}
	result.Input[0] = last.GetName()
	data, err := proto.Marshal(&def)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func longMetrics(g *graph.Graph) (nodes []*pecanv1.NodeMetrics) {
	elements := uint64(1 << 40)
	for i, s := range graphorder.TraitsOf(g) {
		if s.Drops {
			elements = elements * 3 / 4
		}
		nodes = append(nodes, &pecanv1.NodeMetrics{Node: s.Node, Elements: elements, SelfCpuS: float64(elements) * float64(1+i%7) * 1e-4, BytesOut: 49160 * elements})
	}
	return nodes
}

func TestProposeOrdersALongDataset(t *testing.T) {
	g := parse(t, longDataset(t, 200))
	asked := options(pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT)
	proposal, err := ordering.Propose(g, plan(t, g, asked), asked, ordering.Measured{Nodes: longMetrics(g)})
	if err != nil {
		t.Fatal(err)
	}
	if len(proposal.Order) == 0 || !(proposal.PredictedAfter < proposal.PredictedBefore*0.7) {
		t.Errorf("from %g to %g: %s", proposal.PredictedBefore, proposal.PredictedAfter, proposal.Why)
	}
}

func BenchmarkPropose(b *testing.B) {
	g := parse(b, longDataset(b, 200))
	asked := options(pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT)
	planned, nodes := plan(b, g, asked), longMetrics(g)
	for b.Loop() {
		if _, err := ordering.Propose(g, planned, asked, ordering.Measured{Nodes: nodes}); err != nil {
			b.Fatal(err)
		}
	}
}
