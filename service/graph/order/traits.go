package order

import (
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Traits are the properties of a step that decide where it may move. They follow from the step's op and function.
type Traits struct {
	// Node is the step's node. Op is its op. Input is the node that it reads. Label is the author's name for the step, often
	// empty. Example: "MapDataset/_7", "MapDataset", "BatchDatasetV2/_5" and "crop".
	Node, Op, Label, Input string
	// Inside is the step in whose function the step is; "" outside of functions. The name of the step begins with it. Example:
	// "InterleaveDataset/_3" for the step "InterleaveDataset/_3:MapDataset".
	Inside string
	// Before and After are the components of the step's input and output. Example: a map that casts an image
	// changes component 0 from uint8 to float32.
	Before, After []*graph.ComponentSpec
	// Barrier is the reason why the step cannot move and no step moves past it; empty if it may move. Then all
	// further fields hold. Example: shuffle is a barrier, because it changes the sequence of elements.
	Barrier string
	// Begins is set if the step reads a source, not the step before it in the list. Example: the first step of each dataset
	// below a zip.
	Begins bool
	// Joins is set if the step reads several datasets, so its components have other numbers than theirs.
	Joins bool
	// Passes is set if the step returns the elements of its input unchanged and in their sequence, and other steps move
	// past it freely. Example: prefetch.
	Passes bool
	// Reads are the components on which the step's results, checks or decisions depend. Example: 1 for a filter
	// by label, if component 1 is the label.
	Reads []int
	// SelfReads are the components of Reads on which only their own results and checks of their sizes depend.
	// Example: 0 for a map that doubles component 0; not 0 if the map also computes component 1 from component
	// 0.
	SelfReads []int
	// Writes are the components that the step does not return unchanged. Example: 0 for a map that crops an image.
	Writes []int
	// Changes are the effects of a map on the values of the components in Writes, one per entry. Example: a
	// crop changes the sizes of dimensions 0 and 1 and computes nothing.
	Changes []dataflow.Change
	// Drops is set if the step may leave elements out. Example: filter.
	Drops bool
	// Decides is set if the number of the step's elements, or their selection, may depend on values. Example: filter and
	// flat_map, but not unbatch. Calls is set if the step calls functions.
	Decides, Calls bool
	// Batches is set if the step combines consecutive elements into one. Example: batch, but not padded_batch.
	Batches bool
	// Random is set if the step draws random values. Keyable is set if stateless ops can draw them from the element's
	// index. Example: both hold for tf.random.uniform in a map. Stateful is set if its results or effects depend on earlier
	// calls. Example: a counter.
	Random, Keyable, Stateful bool
	// CanFail is an op that can fail for some elements, Checks an op whose purpose is to fail; empty without one.
	// Example: "DecodeJpeg" and "Assert".
	CanFail, Checks string
	// FailsForIntegers is an op that fails for some integers, for all sizes of its inputs; empty without one. Example:
	// "FloorDiv" by a value that may be 0.
	FailsForIntegers string
}

// IsIn reports whether the step is in the function of a step, or in a function further inside.
func (t *Traits) IsIn(caller string) bool {
	return t.Inside == caller || strings.HasPrefix(t.Inside, caller+InFunction)
}

// Outermost is the step outside of functions in whose function the step is, or else the step itself.
func (t *Traits) Outermost() string {
	return Outermost(t.Node)
}

// traitAnalysis finds the traits of the steps of one dataset.
type traitAnalysis struct {
	*analysis.Analysis
	g *graph.Graph
}

// TraitsOf returns the traits of the steps of a dataset, the step after the source first. If a step joins several datasets, the
// steps of each come before it, one dataset after the other. The steps in the function of an interleave or flat_map also come
// before it, if they have more than one order.
func TraitsOf(g *graph.Graph) []Traits {
	c := newChain(g)
	if c == nil {
		return nil
	}
	return c.traits("")
}

// traits returns the traits of the steps in a function, or of all steps if inside is "".
func (c *chain) traits(inside string) (all []Traits) {
	p := &traitAnalysis{Analysis: analysis.New(c.g), g: c.g}
	dependencies := dataflow.NewDependencyAnalysis(c.g)
	own := make([]Traits, len(c.steps))
	for i, s := range c.steps {
		t := p.traits(s, dependencies)
		if c.fixed[s] {
			t = Traits{
				Node: t.Node, Op: t.Op, Label: t.Label, Input: t.Input, Before: t.Before, After: t.After,
				Begins: t.Begins, Joins: t.Joins, Barrier: authorBarrier, Random: t.Random, Stateful: t.Stateful, Decides: t.Decides, Calls: t.Calls,
			}
		}
		own[i] = t
	}
	p.markVariableUsers(own)
	for i, s := range c.steps {
		t := &own[i]
		name := join(inside, t.Node)
		if body := c.bodies[s]; body != nil {
			all = append(all, body.traits(name)...)
		}
		if inside != "" {
			t.Node, t.Input, t.Inside = name, join(inside, t.Input), inside
			// Random values in functions are not keyed. What is captured may be a variable that other steps change.
			t.Keyable, t.Stateful = false, t.Stateful || capturesResource(c.g, s)
		}
		all = append(all, *t)
	}
	return all
}

// capturesResource reports whether a step in a function uses a resource that the function gets as an argument.
func capturesResource(g *graph.Graph, s *graph.Step) bool {
	return slices.ContainsFunc(s.Node.GetInput(), func(input string) bool {
		from := g.NodeOf(input)
		for from.GetOp() == "Identity" {
			from = g.NodeOf(from.GetInput()[0])
		}
		return graph.IsArgument(from) && from.GetAttr()["dtype"].GetType() == tf.DataType_DT_RESOURCE
	})
}

// markVariableUsers marks a step as stateful if its results depend on a variable that some step changes.
func (a *traitAnalysis) markVariableUsers(steps []Traits) {
	changed := map[*tf.NodeDef]bool{}
	for _, n := range a.g.Order() {
		if !a.g.Ops().IsDataset(n.GetOp()) {
			continue
		}
		for _, c := range a.Captures(n) {
			changed[c.Handle] = changed[c.Handle] || c.Use.Writes
		}
	}
	for i := range steps {
		for _, c := range a.Captures(a.g.Node(steps[i].Node)) {
			steps[i].Stateful = steps[i].Stateful || changed[c.Handle] && !c.Use.IsRandomState()
		}
	}
}

// traits returns the traits of one step. A step that the analysis does not understand is a barrier.
func (a *traitAnalysis) traits(s *graph.Step, dependencies *dataflow.DependencyAnalysis) Traits {
	t := Traits{
		Node: s.Node.GetName(), Op: s.Node.GetOp(), Label: label(s.Node), Input: s.In[0].Node.GetName(),
		Before: a.g.Components(s.In[0].Node), After: a.g.Components(s.Node),
		Begins: begins(s), Joins: joins(s),
		Decides: analysis.ChangesCount(s) && s.Node.GetOp() != "UnbatchDataset", Calls: len(nodedef.CalledFunctions(s.Node)) > 0,
	}
	facts := a.Facts(s)
	t.Random, t.Keyable = facts.Random || facts.Seeded, a.Keyable(s)
	t.Stateful = facts.Stateful || facts.WritesVariables || facts.Unrepeatable || facts.CachesElements || facts.ListsFiles
	switch {
	case joins(s):
		t.Barrier = "it joins several datasets"
	case a.g.Freezes(s.Node):
		t.Barrier = "the random steps before it repeat the values of the first epoch"
		if a.g.CacheMarkOf(s.Node).Forced {
			t.Barrier = "pecan.cache() stores its elements"
		}
	case s.Rule.Kind == ops.PassThrough:
		t.Passes = true
	case s.Rule.Kind == ops.OneToOne:
		a.mapTraits(&t, s, dependencies)
	case s.Node.GetOp() == "FilterDataset" || s.Node.GetOp() == "ParallelFilterDataset":
		a.filterTraits(&t, s, dependencies)
	case batches(s):
		t.Batches = true
		for i := range a.g.OutputTypes(s.Node) {
			t.Writes = append(t.Writes, i)
		}
	default:
		t.Barrier = "it may change which elements there are, or their sequence"
	}
	if t.Barrier != "" {
		t.Reads, t.SelfReads, t.Writes, t.Changes = nil, nil, nil, nil
	}
	return t
}

// batches returns whether a step only combines elements of one shape into batches.
func batches(s *graph.Step) bool {
	switch s.Node.GetOp() {
	case "BatchDataset", "BatchDatasetV2", "ParallelBatchDataset":
		return true
	}
	return false
}

// stepFunction returns the dependencies of a step's only function, and the number of components of its input.
func (a *traitAnalysis) stepFunction(s *graph.Step, dependencies *dataflow.DependencyAnalysis) (*dataflow.Dependencies, int) {
	names := nodedef.CalledFunctions(s.Node)
	if len(names) != 1 {
		return nil, 0
	}
	components := len(a.g.OutputTypes(s.In[0].Node))
	function := dependencies.Of(names[0])
	if function == nil || len(function.Effects) < components {
		return nil, 0
	}
	return function, components
}

// mapTraits adds which components a map reads and writes, and how it changes each of them.
func (a *traitAnalysis) mapTraits(t *Traits, s *graph.Step, dependencies *dataflow.DependencyAnalysis) {
	function, components := a.stepFunction(s, dependencies)
	switch {
	case function == nil:
		t.Barrier = "its work is not in its function"
		return
	case len(function.Same) != components:
		t.Barrier = "it changes the number of components"
		return
	}
	reads := make(dataflow.ArgSet, len(function.Effects))
	shapes := a.g.OutputShapes(s.In[0].Node)
	for i, same := range function.Same {
		if same != i {
			t.Writes = append(t.Writes, i)
			t.Changes = append(t.Changes, dataflow.ChangeOf(a.g, nodedef.CalledFunctions(s.Node)[0], i, shapes[i]))
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
			checks, known = dataflow.ChecksOf(a.g, nodedef.CalledFunctions(s.Node)[0], i, shapes[i])
		}
		if known {
			t.SelfReads = append(t.SelfReads, i)
			t.Changes[at].ChecksSize = checks
		}
	}
	a.failures(t, nodedef.CalledFunctions(s.Node)[0])
}

func (a *traitAnalysis) filterTraits(t *Traits, s *graph.Step, dependencies *dataflow.DependencyAnalysis) {
	function, components := a.stepFunction(s, dependencies)
	if function == nil || len(function.From) != 1 {
		t.Barrier = "its condition is not in its function"
		return
	}
	t.Drops = true
	t.Reads = dataflow.SortedReads(function.From[0], function.Effects, components)
	a.failures(t, nodedef.CalledFunctions(s.Node)[0])
}
