package graph

import (
	"slices"
	"strconv"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// passage is how the results of a function come of its arguments. It is found by following the edges of its body, never by trust in
// names or in what users say: an argument that a result might depend on, it depends on.
type passage struct {
	// from are, for each result, the arguments that it is computed from.
	from []argSet
	// same is, for each result, the argument that it is, unchanged; -1 where there is none.
	same []int
	// effects are the arguments on which anything depends that the function does besides: a check that fails, a print, a state.
	effects argSet
}

// argSet holds arguments by number.
type argSet []bool

func (s argSet) add(other argSet) {
	for i, in := range other {
		s[i] = s[i] || in
	}
}

func (s argSet) numbers() (numbers []int) {
	for i, in := range s {
		if in {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// passages finds the passages of functions, each once.
type passages struct {
	g     *Graph
	known map[string]*passage
}

func newPassages(g *Graph) *passages { return &passages{g, map[string]*passage{}} }

// of gives the passage of a function; nil where an argument is a list, which functions of tf.data's steps do not have.
func (p *passages) of(name string) *passage {
	if found, ok := p.known[name]; ok {
		return found
	}
	p.known[name] = nil
	f := p.g.functions[name]
	body := &body{passages: p, nodes: map[string]*tf.NodeDef{}, args: map[string]int{}, seen: map[string]argSet{}}
	for i, arg := range f.GetSignature().GetInputArg() {
		if arg.GetNumberAttr() != "" || arg.GetTypeListAttr() != "" {
			return nil
		}
		body.args[arg.GetName()] = i
	}
	for _, n := range f.GetNodeDef() {
		body.nodes[n.GetName()] = n
	}
	found := &passage{effects: body.none()}
	for _, out := range f.GetSignature().GetOutputArg() {
		if out.GetNumberAttr() != "" || out.GetTypeListAttr() != "" {
			return nil
		}
		source := f.GetRet()[out.GetName()]
		found.from, found.same = append(found.from, body.depends(source)), append(found.same, body.same(source))
	}
	// What runs although no result needs it: what the function waits for, and ops with a state.
	for _, node := range f.GetControlRet() {
		found.effects.add(body.effects(body.nodes[node]))
	}
	for _, n := range f.GetNodeDef() {
		if p.g.ops.byName[n.GetOp()].GetIsStateful() {
			found.effects.add(body.effects(n))
		}
	}
	p.known[name] = found
	return found
}

// elsewhere tells whether another result than its own is computed from an argument.
func (p *passage) elsewhere(component int) bool {
	for result, from := range p.from {
		if result != component && from[component] && p.same[result] != result {
			return true
		}
	}
	return false
}

// body is a function whose edges are followed.
type body struct {
	*passages
	nodes map[string]*tf.NodeDef
	args  map[string]int
	seen  map[string]argSet
}

func (b *body) none() argSet { return make(argSet, len(b.args)) }

// depends gives the arguments that an input inside the function is computed from.
func (b *body) depends(input string) argSet {
	name := functionInputNode(input)
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
	for arg, in := range called.from[at] {
		if in {
			from.add(b.depends(n.GetInput()[arg]))
		}
	}
	return from
}

// effects gives the arguments on which depends what a node does besides giving results.
func (b *body) effects(n *tf.NodeDef) argSet {
	called, _ := b.call(n, "")
	if called == nil {
		return b.node(n)
	}
	from := b.none()
	for i, input := range n.GetInput() {
		if i >= len(called.effects) || called.effects[i] {
			// What it waits for stands behind its arguments.
			from.add(b.depends(input))
		}
	}
	return from
}

// node gives the arguments that a node is computed from, whichever of its results is asked for.
func (b *body) node(n *tf.NodeDef) argSet {
	if found, ok := b.seen[n.GetName()]; ok {
		return found
	}
	from := b.none()
	// Parse has made sure that no node depends on itself.
	for _, input := range n.GetInput() {
		from.add(b.depends(input))
	}
	b.seen[n.GetName()] = from
	return from
}

// call gives the passage of the function that a node calls, and which of its results an input is, if one is named; nil where it calls
// none, or in a way that is not followed.
func (b *body) call(n *tf.NodeDef, input string) (called *passage, result int) {
	if op := n.GetOp(); op != "PartitionedCall" && op != "StatefulPartitionedCall" {
		return nil, 0
	}
	called = b.of(n.GetAttr()["f"].GetFunc().GetName())
	if called == nil || len(called.effects) != dataInputs(n) {
		return nil, 0
	}
	if result = outputIndex(input); input != "" && (result < 0 || result >= len(called.from)) {
		return nil, 0
	}
	return called, result
}

// same gives the argument that an input is, through whatever passes it on unchanged; -1 where it is computed.
func (b *body) same(input string) int {
	for {
		name := functionInputNode(input)
		if i, ok := b.args[name]; ok {
			return i
		}
		n := b.nodes[name]
		switch n.GetOp() {
		case "Identity":
			input = n.GetInput()[0]
			continue
		case "IdentityN":
			if i := outputIndex(input); i >= 0 && i < dataInputs(n) {
				input = n.GetInput()[i]
				continue
			}
		}
		called, at := b.call(n, input)
		if called == nil || called.same[at] < 0 {
			return -1
		}
		input = n.GetInput()[called.same[at]]
	}
}

// outputIndex is which result of a node an input inside a function names, where all results have one list ("node:output:2"); -1 where the
// name has no number.
func outputIndex(input string) int {
	parts := strings.Split(input, ":")
	index, err := strconv.Atoi(parts[len(parts)-1])
	if err != nil {
		return -1
	}
	return index
}

func dataInputs(n *tf.NodeDef) (count int) {
	for _, input := range n.GetInput() {
		count += int(boolInt(!strings.HasPrefix(input, "^")))
	}
	return count
}

// sorted are the numbers of two sets, without those from a limit on: what is captured lies behind the components.
func sorted(a, b argSet, below int) (numbers []int) {
	both := slices.Clone(a)
	both.add(b)
	return both[:min(below, len(both))].numbers()
}
