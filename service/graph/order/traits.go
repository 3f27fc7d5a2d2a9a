package order

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Traits are the properties of a step that decide where it may stand in the order. They follow from the step's function.
type Traits struct {
	// Node is the step's name, Op its op, Label the author's name for it (often empty), and Input the node that it reads.
	Node, Op, Label, Input string
	// Before and After are the components of the step's input and output.
	Before, After []*graph.ComponentSpec
	// Barrier says why nothing is known that would let the step move, or others pass it; empty: the rest holds.
	Barrier string
	// Passes: it changes no element, drops none and keeps their order (prefetch, options); it is not counted among the steps.
	Passes bool
	// Reads are the components that it looks at: what it computes, checks or decides depends on them.
	Reads []int
	// SelfReads are those of Reads that it looks at for their own results only, and for checks of their sizes.
	SelfReads []int
	// Writes are the components that it does not pass on as they are.
	Writes []int
	// Changes are what a map does to the values of those, in their order.
	Changes []dataflow.Change
	// Drops: it may leave elements out.
	Drops bool
	// Decides: how many elements it gives, or which, may depend on their values; Calls: it calls functions for them.
	Decides, Calls bool
	// Batches: it makes one element of several.
	Batches bool
	// Random: it draws numbers; Keyable: they can be made to follow from the number of the element. Stateful: what it gives or does
	// depends on earlier calls.
	Random, Keyable, Stateful bool
	// CanFail names an op by which it may fail for some elements and not for others, Checks one that is there to fail; empty: none.
	CanFail, Checks string
	// Divides names an op of integers that fails for some values, whatever sizes they come in; empty: none.
	Divides string
}

// traitAnalysis finds the traits of the steps of one dataset.
type traitAnalysis struct {
	*analysis.Analysis
	g *graph.Graph
}

// TraitsOf gives the traits of the steps of a dataset, the one next to the source first. Where a step reads several datasets the list
// begins above it.
func TraitsOf(g *graph.Graph) []Traits {
	root, isTree := g.Steps()
	if !isTree {
		return nil
	}
	p := &traitAnalysis{Analysis: analysis.New(g), g: g}
	found := dataflow.NewDependencyAnalysis(g)
	held := barriers(g, root)
	var steps []Traits
	for s := root; len(s.In) == 1; s = s.In[0] {
		t := p.traits(s, found)
		if held[s] {
			t = Traits{
				Node: t.Node, Op: t.Op, Label: t.Label, Input: t.Input, Before: t.Before, After: t.After,
				Barrier: authorBarrier, Random: t.Random, Stateful: t.Stateful, Decides: t.Decides, Calls: t.Calls,
			}
		}
		steps = append(steps, t)
	}
	slices.Reverse(steps)
	p.shareVariables(steps)
	return steps
}

// shareVariables finds the steps whose results depend on variables that some step changes.
func (p *traitAnalysis) shareVariables(steps []Traits) {
	changed := map[*tf.NodeDef]bool{}
	for _, n := range p.g.Order() {
		if !p.g.Ops().IsDataset(n.GetOp()) {
			continue
		}
		for _, c := range p.Captures(n) {
			changed[c.Handle] = changed[c.Handle] || c.Use.Writes
		}
	}
	for i := range steps {
		for _, c := range p.Captures(p.g.Node(steps[i].Node)) {
			steps[i].Stateful = steps[i].Stateful || changed[c.Handle] && !c.Use.IsRandomState()
		}
	}
}

func (p *traitAnalysis) traits(s *graph.Step, found *dataflow.DependencyAnalysis) Traits {
	t := Traits{
		Node: s.Node.GetName(), Op: s.Node.GetOp(), Label: label(s.Node), Input: s.In[0].Node.GetName(),
		Before: p.g.Components(s.In[0].Node), After: p.g.Components(s.Node),
		Decides: analysis.ChangesCount(s) && s.Node.GetOp() != "UnbatchDataset", Calls: len(nodedef.CalledFunctions(s.Node)) > 0,
	}
	facts := p.Facts(s)
	t.Random, t.Keyable = facts.Random || facts.Seeded, p.Keyable(s)
	t.Stateful = facts.Stateful || facts.WritesVariables || facts.Unrepeatable || facts.CachesElements || facts.ListsFiles
	switch {
	case p.g.IsCacheMark(s.Node):
		t.Barrier = "what passes it is kept"
	case s.Rule.Kind == ops.PassThrough:
		t.Passes = true
	case s.Rule.Kind == ops.OneToOne:
		p.mapTraits(&t, s, found)
	case s.Node.GetOp() == "FilterDataset" || s.Node.GetOp() == "ParallelFilterDataset":
		p.filterTraits(&t, s, found)
	case batches(s):
		t.Batches = true
		for i := range p.g.OutputTypes(s.Node) {
			t.Writes = append(t.Writes, i)
		}
	default:
		t.Barrier = "it gives other elements, or in another order"
	}
	if t.Barrier != "" {
		t.Reads, t.SelfReads, t.Writes, t.Changes = nil, nil, nil, nil
	}
	return t
}

// batches tells whether a step puts elements of one shape together, and does nothing else.
func batches(s *graph.Step) bool {
	switch s.Node.GetOp() {
	case "BatchDataset", "BatchDatasetV2", "ParallelBatchDataset":
		return true
	}
	return false
}

// stepFunction gives the passage of a step's only function, and how many components its elements have.
func (p *traitAnalysis) stepFunction(s *graph.Step, found *dataflow.DependencyAnalysis) (*dataflow.Dependencies, int) {
	names := nodedef.CalledFunctions(s.Node)
	if len(names) != 1 {
		return nil, 0
	}
	components := len(p.g.OutputTypes(s.In[0].Node))
	function := found.Of(names[0])
	if function == nil || len(function.Effects) < components {
		return nil, 0
	}
	return function, components
}

func (p *traitAnalysis) mapTraits(t *Traits, s *graph.Step, found *dataflow.DependencyAnalysis) {
	function, components := p.stepFunction(s, found)
	switch {
	case function == nil:
		t.Barrier = "what it does is not in its function"
		return
	case len(function.Same) != components:
		t.Barrier = "it changes the number of components"
		return
	}
	reads := make(dataflow.ArgSet, len(function.Effects))
	shapes := p.g.OutputShapes(s.In[0].Node)
	for i, same := range function.Same {
		if same != i {
			t.Writes = append(t.Writes, i)
			t.Changes = append(t.Changes, dataflow.ChangeOf(p.g, nodedef.CalledFunctions(s.Node)[0], i, shapes[i]))
			reads.Add(function.From[i])
		}
	}
	t.Reads = dataflow.SortedReads(reads, function.Effects, components)
	for at, i := range t.Writes {
		if !function.From[i][i] || function.UsedElsewhere(i) {
			continue
		}
		checks, known := dataflow.Dims(0), true
		if function.Effects[i] {
			checks, known = dataflow.ChecksOf(p.g, nodedef.CalledFunctions(s.Node)[0], i, shapes[i])
		}
		if known {
			t.SelfReads = append(t.SelfReads, i)
			t.Changes[at].ChecksSize = checks
		}
	}
	p.failures(t, nodedef.CalledFunctions(s.Node)[0])
}

func (p *traitAnalysis) filterTraits(t *Traits, s *graph.Step, found *dataflow.DependencyAnalysis) {
	function, components := p.stepFunction(s, found)
	if function == nil || len(function.From) != 1 {
		t.Barrier = "what it asks is not in its function"
		return
	}
	t.Drops = true
	t.Reads = dataflow.SortedReads(function.From[0], function.Effects, components)
	p.failures(t, nodedef.CalledFunctions(s.Node)[0])
}
