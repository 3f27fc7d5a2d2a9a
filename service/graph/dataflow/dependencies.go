package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Dependencies is how the results of a function come of its arguments. It is found by following the edges of its body, never by trust in
// names or in what users say: an argument that a result might depend on, it depends on.
type Dependencies struct {
	// From are, for each result, the arguments that it is computed from.
	From []ArgSet
	// Same is, for each result, the argument that it is, unchanged; -1 where there is none.
	Same []int
	// Effects are the arguments on which anything depends that the function does besides: a check that fails, a print, a state.
	Effects ArgSet
}

// ArgSet holds arguments by number.
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

// DependencyAnalysis finds the passages of functions, each once.
type DependencyAnalysis struct {
	g     *graph.Graph
	known map[string]*Dependencies
}

// NewDependencyAnalysis prepares the analysis of a graph's functions.
func NewDependencyAnalysis(g *graph.Graph) *DependencyAnalysis {
	return &DependencyAnalysis{g, map[string]*Dependencies{}}
}

// Of gives the passage of a function; nil where an argument is a list, which functions of tf.data's steps do not have.
func (p *DependencyAnalysis) Of(name string) *Dependencies {
	if found, ok := p.known[name]; ok {
		return found
	}
	p.known[name] = nil
	f := p.g.Function(name)
	body := &functionBody{DependencyAnalysis: p, nodes: map[string]*tf.NodeDef{}, args: map[string]int{}, seen: map[string]ArgSet{}}
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
	// What runs although no result needs it: what the function waits for, and ops with a state.
	for _, node := range f.GetControlRet() {
		found.Effects.Add(body.effects(body.nodes[node]))
	}
	for _, n := range f.GetNodeDef() {
		if p.g.Ops().Def(n.GetOp()).GetIsStateful() {
			found.Effects.Add(body.effects(n))
		}
	}
	p.known[name] = found
	return found
}

// UsedElsewhere tells whether another result than its own is computed from an argument.
func (p *Dependencies) UsedElsewhere(component int) bool {
	for result, from := range p.From {
		if result != component && from[component] && p.Same[result] != result {
			return true
		}
	}
	return false
}

// functionBody is a function whose edges are followed.
type functionBody struct {
	*DependencyAnalysis
	nodes map[string]*tf.NodeDef
	args  map[string]int
	seen  map[string]ArgSet
}

func (b *functionBody) none() ArgSet { return make(ArgSet, len(b.args)) }

// depends gives the arguments that an input inside the function is computed from.
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

// effects gives the arguments on which depends what a node does besides giving results.
func (b *functionBody) effects(n *tf.NodeDef) ArgSet {
	called, _ := b.call(n, "")
	if called == nil {
		return b.node(n)
	}
	from := b.none()
	for i, input := range n.GetInput() {
		if i >= len(called.Effects) || called.Effects[i] {
			// What it waits for stands behind its arguments.
			from.Add(b.depends(input))
		}
	}
	return from
}

// node gives the arguments that a node is computed from, whichever of its results is asked for.
func (b *functionBody) node(n *tf.NodeDef) ArgSet {
	if found, ok := b.seen[n.GetName()]; ok {
		return found
	}
	from := b.none()
	// Parse has made sure that no node depends on itself.
	for _, input := range n.GetInput() {
		from.Add(b.depends(input))
	}
	b.seen[n.GetName()] = from
	return from
}

// call gives the passage of the function that a node calls, and which of its results an input is, if one is named; nil where it calls
// none, or in a way that is not followed.
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

// same gives the argument that an input is, through whatever passes it on unchanged; -1 where it is computed.
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

// SortedReads are the numbers of two sets, without those from a limit on: what is captured lies behind the components.
func SortedReads(a, b ArgSet, below int) (numbers []int) {
	both := slices.Clone(a)
	both.Add(b)
	return both[:min(below, len(both))].numbers()
}
