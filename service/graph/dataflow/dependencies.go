package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Dependencies says how the results of a function depend on its arguments. The analysis follows the edges of
// the function's body, and never trusts names or user statements. If a result might depend on an argument,
// the analysis says that it does.
type Dependencies struct {
	// From contains, for each result, the arguments that it depends on.
	From []ArgSet
	// Same contains, for each result, the argument that it returns unchanged, -1 if there is none.
	Same []int
	// Effects contains the arguments that the function's other effects depend on: a check that fails, a
	// print, a state.
	Effects ArgSet
}

// ArgSet is a set of arguments, by number.
type ArgSet []bool

// Add adds the arguments of another set.
func (s ArgSet) Add(other ArgSet) {
	for i, in := range other {
		s[i] = s[i] || in
	}
}

func (s ArgSet) numbers() (numbers []int) {
	for i, in := range s {
		if in {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// DependencyAnalysis finds the dependencies of functions, each once.
type DependencyAnalysis struct {
	g     *graph.Graph
	known map[string]*Dependencies
}

// NewDependencyAnalysis returns an analysis of a graph's functions.
func NewDependencyAnalysis(g *graph.Graph) *DependencyAnalysis {
	return &DependencyAnalysis{g, map[string]*Dependencies{}}
}

// Of returns the dependencies of a function. It returns nil if an argument or a result is a list, which
// functions of tf.data's steps do not have.
func (a *DependencyAnalysis) Of(name string) *Dependencies {
	if found, ok := a.known[name]; ok {
		return found
	}
	a.known[name] = nil
	f := a.g.Function(name)
	body := &functionBody{DependencyAnalysis: a, nodes: map[string]*tf.NodeDef{}, args: map[string]int{}, seen: map[string]ArgSet{}}
	for i, arg := range f.GetSignature().GetInputArg() {
		if arg.GetNumberAttr() != "" || arg.GetTypeListAttr() != "" {
			return nil
		}
		body.args[arg.GetName()] = i
	}
	for _, n := range f.GetNodeDef() {
		body.nodes[n.GetName()] = n
	}
	found := &Dependencies{Effects: body.none()}
	for _, out := range f.GetSignature().GetOutputArg() {
		if out.GetNumberAttr() != "" || out.GetTypeListAttr() != "" {
			return nil
		}
		source := f.GetRet()[out.GetName()]
		found.From, found.Same = append(found.From, body.depends(source)), append(found.Same, body.same(source))
	}
	// Control outputs and stateful ops run even if no result needs them.
	for _, node := range f.GetControlRet() {
		found.Effects.Add(body.effects(body.nodes[node]))
	}
	for _, n := range f.GetNodeDef() {
		if a.g.Ops().Def(n.GetOp()).GetIsStateful() {
			found.Effects.Add(body.effects(n))
		}
	}
	a.known[name] = found
	return found
}

// UsedElsewhere reports whether a result other than the component's own depends on the component.
func (d *Dependencies) UsedElsewhere(component int) bool {
	for result, from := range d.From {
		if result != component && from[component] && d.Same[result] != result {
			return true
		}
	}
	return false
}

// functionBody is a function whose edges the analysis follows.
type functionBody struct {
	*DependencyAnalysis
	nodes map[string]*tf.NodeDef
	args  map[string]int
	seen  map[string]ArgSet
}

func (b *functionBody) none() ArgSet { return make(ArgSet, len(b.args)) }

// depends returns the arguments that an input inside the function depends on.
func (b *functionBody) depends(input string) ArgSet {
	name := nodedef.InputNode(input)
	if i, ok := b.args[name]; ok {
		from := b.none()
		from[i] = true
		return from
	}
	n := b.nodes[name]
	called, at := b.call(n, input)
	if called == nil {
		return b.node(n)
	}
	from := b.effects(n)
	for arg, in := range called.From[at] {
		if in {
			from.Add(b.depends(n.GetInput()[arg]))
		}
	}
	return from
}

// effects returns the arguments that a node's effects other than its results depend on.
func (b *functionBody) effects(n *tf.NodeDef) ArgSet {
	called, _ := b.call(n, "")
	if called == nil {
		return b.node(n)
	}
	from := b.none()
	for i, input := range n.GetInput() {
		if i >= len(called.Effects) || called.Effects[i] {
			// The control inputs come after the arguments.
			from.Add(b.depends(input))
		}
	}
	return from
}

// node returns the arguments that any result of a node depends on.
func (b *functionBody) node(n *tf.NodeDef) ArgSet {
	if found, ok := b.seen[n.GetName()]; ok {
		return found
	}
	from := b.none()
	// Parse refuses a node that depends on itself, so this recursion ends.
	for _, input := range n.GetInput() {
		from.Add(b.depends(input))
	}
	b.seen[n.GetName()] = from
	return from
}

// call returns the dependencies of the function that a node calls. If input is not "", it also returns the number of the
// result that input refers to. It returns nil if the node calls no function, or calls it in a way that the
// analysis does not support.
func (b *functionBody) call(n *tf.NodeDef, input string) (called *Dependencies, result int) {
	if op := n.GetOp(); op != "PartitionedCall" && op != "StatefulPartitionedCall" {
		return nil, 0
	}
	called = b.Of(n.GetAttr()["f"].GetFunc().GetName())
	if called == nil || len(called.Effects) != nodedef.DataInputCount(n) {
		return nil, 0
	}
	if result = nodedef.OutputIndex(input); input != "" && (result < 0 || result >= len(called.From)) {
		return nil, 0
	}
	return called, result
}

// same returns the argument that an input equals, through ops that pass it on unchanged. It returns -1 if the
// input is computed.
func (b *functionBody) same(input string) int {
	for {
		name := nodedef.InputNode(input)
		if i, ok := b.args[name]; ok {
			return i
		}
		n := b.nodes[name]
		switch n.GetOp() {
		case "Identity":
			input = n.GetInput()[0]
			continue
		case "IdentityN":
			if i := nodedef.OutputIndex(input); i >= 0 && i < nodedef.DataInputCount(n) {
				input = n.GetInput()[i]
				continue
			}
		}
		called, at := b.call(n, input)
		if called == nil || called.Same[at] < 0 {
			return -1
		}
		input = n.GetInput()[called.Same[at]]
	}
}

// SortedReads returns the numbers of the arguments in two sets, except those from below on. Captured
// arguments come after the components.
func SortedReads(a, b ArgSet, below int) (numbers []int) {
	both := slices.Clone(a)
	both.Add(b)
	return both[:min(below, len(both))].numbers()
}
