package graph

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// RuleOf returns the rule of a node. It returns Undivided for an op without a rule, and for a map whose
// attributes allow other numbers of elements.
func (g *Graph) RuleOf(n *tf.NodeDef) ops.Rule {
	r, ok := ops.Rules[strings.TrimPrefix(n.GetOp(), "Experimental")]
	if !ok {
		return ops.Rule{Kind: ops.Undivided}
	}
	if r.Kind == ops.OneToOne && ops.AttrDef(g.ops.Def(n.GetOp()), "preserve_cardinality") != nil && !g.Attr(n, "preserve_cardinality").GetB() {
		return ops.Rule{Kind: ops.Undivided}
	}
	return r
}

// Step is one dataset of the pipeline, as a node of a tree whose root is the result. Planning rewires steps.
// It does not change their nodes.
type Step struct {
	Node *tf.NodeDef
	Rule ops.Rule
	// In contains the datasets that the step reads, and InAt their positions among the node's inputs.
	In   []*Step
	InAt []int
	// Captured contains the datasets that the step's functions use.
	Captured []*Step
	// OutputOf is the node whose output types and shapes the step has. A step that moved upstream has those
	// of its new input.
	OutputOf *tf.NodeDef
}

var datasetArgs = ops.Names(`input_dataset input_datasets another_dataset selector_input_dataset data_input_datasets inputs`)

// Steps returns the steps of the graph. ok is false if they are not a tree, because a dataset node has two
// users.
func (g *Graph) Steps() (root *Step, ok bool) {
	users := map[string]int{}
	for _, n := range g.order {
		for _, input := range n.GetInput() {
			if name, _, control := nodedef.SplitInput(input); !control && g.ops.IsDataset(g.nodes[name].GetOp()) {
				users[name]++
			}
		}
	}
	ok = true
	steps := map[string]*Step{}
	for _, n := range g.order {
		if !g.ops.IsDataset(n.GetOp()) {
			continue
		}
		if users[n.GetName()] > 1 {
			ok = false
		}
		steps[n.GetName()] = g.newStep(n, steps)
	}
	return steps[g.root.GetName()], ok
}

// newStep makes the step of a node. Datasets that a step reads are in In. Datasets that its function captures are in
// Captured.
func (g *Graph) newStep(n *tf.NodeDef, steps map[string]*Step) *Step {
	s := &Step{Node: n, Rule: g.RuleOf(n), OutputOf: n}
	at := 0
	for _, arg := range g.ops.Def(n.GetOp()).GetInputArg() {
		size, _ := g.ArgSize(arg, n)
		for i := at; i < at+size; i++ {
			name, _, _ := nodedef.SplitInput(n.GetInput()[i])
			from := steps[name]
			switch {
			case from == nil:
			case datasetArgs[arg.GetName()]:
				s.In = append(s.In, from)
				s.InAt = append(s.InAt, i)
			default:
				s.Captured = append(s.Captured, from)
			}
		}
		at += size
	}
	if s.Rule.Kind != ops.Source && len(s.In) == 0 {
		s.Rule = ops.Rule{Kind: ops.Source, Cost: 3}
	}
	// take(-1), skip(0) and repeat(1) change nothing. Users add them to give a step a name.
	count, ok := g.InputInt(n, "count")
	switch op := n.GetOp(); {
	case !ok:
	case op == "TakeDataset" && count < 0, op == "SkipDataset" && count == 0, op == "RepeatDataset" && count == 1:
		s.Rule = ops.Rule{Kind: ops.PassThrough}
	}
	return s
}

// Walk visits a step and everything upstream of it, including captured datasets.
func (s *Step) Walk(visit func(*Step)) {
	visit(s)
	for _, in := range s.In {
		in.Walk(visit)
	}
	for _, c := range s.Captured {
		c.Walk(visit)
	}
}
