package graph

import (
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Traits are what a step does to elements, as far as its order among others is concerned. They are found in the step's function.
type Traits struct {
	// Node is the step's name, Op what it is, Label what its author calls it (often nothing), and Input the node that it reads.
	Node, Op, Label, Input string
	// Before and Behind are the components of the elements that it gets and gives.
	Before, Behind []*ComponentSpec
	// Barrier says why nothing is known that would let the step move, or others pass it; empty: the rest holds.
	Barrier string
	// Passes: it changes no element, drops none and keeps their order (prefetch, options); it is not counted among the steps.
	Passes bool
	// Reads are the components that it looks at: what it computes, checks or decides depends on them.
	Reads []int
	// Own are those of Reads that it looks at for their own results only, and for checks of their sizes.
	Own []int
	// Writes are the components that it does not pass on as they are.
	Writes []int
	// Changes are what a map does to the values of those, in their order.
	Changes []Change
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

// TraitsOf gives the traits of the steps of a dataset, the one next to the source first. Where a step reads several datasets the list
// begins above it.
func TraitsOf(g *Graph) []Traits {
	root, isTree := g.tree()
	if !isTree {
		return nil
	}
	p := newPlanner(g)
	found := newPassages(g)
	held := g.held(root)
	var steps []Traits
	for s := root; len(s.in) == 1; s = s.in[0] {
		t := p.traits(s, found)
		if held[s] {
			t = Traits{
				Node: t.Node, Op: t.Op, Label: t.Label, Input: t.Input, Before: t.Before, Behind: t.Behind,
				Barrier: authorHolds, Random: t.Random, Stateful: t.Stateful, Decides: t.Decides, Calls: t.Calls,
			}
		}
		steps = append(steps, t)
	}
	slices.Reverse(steps)
	p.shareVariables(steps)
	return steps
}

// shareVariables finds the steps whose results depend on variables that some step changes.
func (p *planner) shareVariables(steps []Traits) {
	changed := map[*tf.NodeDef]bool{}
	for _, n := range p.g.order {
		if !p.g.ops.isDataset(n.GetOp()) {
			continue
		}
		for _, c := range p.captures(n) {
			changed[c.handle] = changed[c.handle] || c.use.writes
		}
	}
	for i := range steps {
		for _, c := range p.captures(p.g.nodes[steps[i].Node]) {
			steps[i].Stateful = steps[i].Stateful || changed[c.handle] && !c.use.randomState()
		}
	}
}

func (p *planner) traits(s *step, found *passages) Traits {
	t := Traits{
		Node: s.node.GetName(), Op: s.node.GetOp(), Label: label(s.node), Input: s.in[0].node.GetName(),
		Before: p.g.components(s.in[0].node), Behind: p.g.components(s.node),
		Decides: changesCount(s) && s.node.GetOp() != "UnbatchDataset", Calls: len(calledFunctions(s.node)) > 0,
	}
	facts := p.facts(s)
	t.Random, t.Keyable = facts.draws || facts.seeded, p.keyable(s)
	t.Stateful = facts.stateful || facts.writes || facts.wild || facts.caches || facts.lists
	switch {
	case p.g.isMark(s.node):
		t.Barrier = "what passes it is kept"
	case s.rule.kind == pass:
		t.Passes = true
	case s.rule.kind == oneToOne:
		p.mapTraits(&t, s, found)
	case s.node.GetOp() == "FilterDataset" || s.node.GetOp() == "ParallelFilterDataset":
		p.filterTraits(&t, s, found)
	case batches(s):
		t.Batches = true
		for i := range p.g.outputTypes(s.node) {
			t.Writes = append(t.Writes, i)
		}
	default:
		t.Barrier = "it gives other elements, or in another order"
	}
	if t.Barrier != "" {
		t.Reads, t.Own, t.Writes, t.Changes = nil, nil, nil, nil
	}
	return t
}

// batches tells whether a step puts elements of one shape together, and does nothing else.
func batches(s *step) bool {
	switch s.node.GetOp() {
	case "BatchDataset", "BatchDatasetV2", "ParallelBatchDataset":
		return true
	}
	return false
}

// stepFunction gives the passage of a step's only function, and how many components its elements have.
func (p *planner) stepFunction(s *step, found *passages) (*passage, int) {
	names := calledFunctions(s.node)
	if len(names) != 1 {
		return nil, 0
	}
	components := len(p.g.outputTypes(s.in[0].node))
	function := found.of(names[0])
	if function == nil || len(function.effects) < components {
		return nil, 0
	}
	return function, components
}

func (p *planner) mapTraits(t *Traits, s *step, found *passages) {
	function, components := p.stepFunction(s, found)
	switch {
	case function == nil:
		t.Barrier = "what it does is not in its function"
		return
	case len(function.same) != components:
		t.Barrier = "it changes the number of components"
		return
	}
	reads := make(argSet, len(function.effects))
	shapes := p.g.outputShapes(s.in[0].node)
	for i, same := range function.same {
		if same != i {
			t.Writes = append(t.Writes, i)
			t.Changes = append(t.Changes, p.g.changeOf(calledFunctions(s.node)[0], i, shapes[i]))
			reads.add(function.from[i])
		}
	}
	t.Reads = sorted(reads, function.effects, components)
	for at, i := range t.Writes {
		if !function.from[i][i] || function.elsewhere(i) {
			continue
		}
		checks, known := Dims(0), true
		if function.effects[i] {
			checks, known = p.g.checksOf(calledFunctions(s.node)[0], i, shapes[i])
		}
		if known {
			t.Own = append(t.Own, i)
			t.Changes[at].Checks = checks
		}
	}
	p.failures(t, calledFunctions(s.node)[0])
}

func (p *planner) filterTraits(t *Traits, s *step, found *passages) {
	function, components := p.stepFunction(s, found)
	if function == nil || len(function.from) != 1 {
		t.Barrier = "what it asks is not in its function"
		return
	}
	t.Drops = true
	t.Reads = sorted(function.from[0], function.effects, components)
	p.failures(t, calledFunctions(s.node)[0])
}

// label is the name that a step's author gave to it, or to its function. TensorFlow gives steps without one their kind and a number.
func label(n *tf.NodeDef) string {
	var metadata tf.Metadata
	if proto.Unmarshal(n.GetAttr()["metadata"].GetS(), &metadata) != nil {
		return ""
	}
	name := string(metadata.GetName())
	if kind, _, numbered := strings.Cut(name, ":"); name == "" || numbered && strings.Contains(kind, "Dataset") {
		return functionLabel(n)
	}
	return name
}

// tracedName is how tf.data names a function: by the step, by what the function is called in Python, and with a number.
var tracedName = regexp.MustCompile(`^__inference_Dataset_(?:flat_map|[a-z]+)_([A-Za-z_][\w.]*)_\d+$`)

// functionLabel is the name of a step's function; empty where it has none, or one that says nothing.
func functionLabel(n *tf.NodeDef) string {
	called := calledFunctions(n)
	if len(called) != 1 {
		return ""
	}
	traced := tracedName.FindStringSubmatch(called[0])
	if traced == nil || traced[1] == "lambda" || traced[1] == "kept" || strings.HasPrefix(traced[1], "class") {
		return ""
	}
	return traced[1]
}
