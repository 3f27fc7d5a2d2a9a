package graph

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// use is what a dataset's functions do with a variable that was handed to them.
type use struct {
	// writes: they give it other values.
	writes bool
	// shows: its value serves for more than starting stateless random ops.
	shows bool
	// generator: it is the state of a tf.random.Generator, which ops of its own draw from.
	generator bool
	// returned: a function gives the handle back to its caller.
	returned bool
}

// randomState tells whether a variable is nothing but the state of a random generator, such as Keras' SeedGenerator:
// whatever number it starts from, the same things happen with other random values.
func (u use) randomState() bool { return u.generator || (u.writes && !u.shows) }

// counts tells whether a variable is changed and its value means something.
func (u use) counts() bool { return u.writes && !u.randomState() }

func (u *use) add(o use) {
	u.writes = u.writes || o.writes
	u.shows = u.shows || o.shows
	u.generator = u.generator || o.generator
}

// anything is what must be assumed of a handle that goes where it cannot be followed.
var anything = use{writes: true, shows: true}

// argument is one argument of one function.
type argument struct {
	function string
	index    int
}

// capture is a variable that a step hands to its functions.
type capture struct {
	handle *tf.NodeDef
	use    use
}

// maxVisits bounds following handles and values through functions: hostile graphs could make it quadratic.
const maxVisits = 5_000_000

// captures are the variables that a node outside of functions uses.
func (p *planner) captures(n *tf.NodeDef) []capture {
	var found []capture
	for i, input := range n.GetInput() {
		if strings.HasPrefix(input, "^") {
			break
		}
		from := p.g.top(input)
		for from.GetOp() == "Identity" {
			from = p.g.top(from.GetInput()[0])
		}
		if from.GetOp() == "VarHandleOp" {
			c := capture{handle: from}
			c.use.add(p.handedOver(n, i))
			found = append(found, c)
		}
	}
	return found
}

// handedOver tells what becomes of the handle that a node passes on to functions through one of its inputs.
func (p *planner) handedOver(n *tf.NodeDef, input int) use {
	args, ok := p.receivers(n, input)
	if !ok {
		return anything
	}
	var u use
	for _, arg := range args {
		sub := p.argumentUse(arg)
		u.add(sub)
		u.returned = u.returned || sub.returned
	}
	return u
}

// receivers finds the arguments of functions that one input of a node becomes. Captured inputs are the last arguments
// of a function, and calls hand over all arguments, which comes to the same.
func (p *planner) receivers(n *tf.NodeDef, input int) ([]argument, bool) {
	at := 0
	for _, arg := range p.g.ops.byName[n.GetOp()].GetInputArg() {
		size, ok := p.g.argSize(arg, n)
		if !ok {
			return nil, false
		}
		if input >= at+size {
			at += size
			continue
		}
		called := calledFunctions(n)
		if only, ok := strings.CutSuffix(arg.GetName(), "_other_arguments"); ok {
			called = []string{n.GetAttr()[only].GetFunc().GetName()}
		}
		var args []argument
		for _, name := range called {
			index := len(p.g.functions[name].GetSignature().GetInputArg()) - size + input - at
			if index < 0 || p.g.functions[name] == nil {
				return nil, false
			}
			args = append(args, argument{name, index})
		}
		return args, len(args) > 0
	}
	return nil, false
}

// consumer is one input of a node inside a function.
type consumer struct {
	node  *tf.NodeDef
	index int
	// ref is the input as the node writes it.
	ref string
}

// flow tells who takes what inside of a function.
type flow struct {
	consumers map[string][]consumer
	returned  map[string]bool
}

func (p *planner) flowOf(function string) *flow {
	if f, ok := p.flows[function]; ok {
		return f
	}
	f := &flow{consumers: map[string][]consumer{}, returned: map[string]bool{}}
	p.flows[function] = f
	def := p.g.functions[function]
	for _, n := range def.GetNodeDef() {
		for i, input := range n.GetInput() {
			if !strings.HasPrefix(input, "^") {
				name := functionInputNode(input)
				f.consumers[name] = append(f.consumers[name], consumer{n, i, input})
			}
		}
	}
	for _, ref := range def.GetRet() {
		f.returned[functionInputNode(ref)] = true
	}
	return f
}

// argumentUse follows a handle through a function.
func (p *planner) argumentUse(arg argument) use {
	if known, ok := p.uses[arg]; ok {
		return known
	}
	f := p.flowOf(arg.function)
	handles := []string{p.g.functions[arg.function].GetSignature().GetInputArg()[arg.index].GetName()}
	seen := map[string]bool{}
	var values []string
	var u use
	for len(handles) > 0 && p.visits < maxVisits {
		name := handles[0]
		handles = handles[1:]
		u.returned = u.returned || f.returned[name]
		for _, c := range f.consumers[name] {
			p.visits++
			if op := c.node.GetOp(); op == "Identity" && !seen[c.node.GetName()] {
				seen[c.node.GetName()] = true
				handles = append(handles, c.node.GetName())
			} else if op == "ReadVariableOp" {
				values = append(values, c.node.GetName())
			} else if op != "Identity" {
				u.add(p.handleUse(c))
			}
		}
	}
	u.shows = u.shows || p.shows(f, values)
	if p.visits >= maxVisits {
		u = anything
	}
	p.uses[arg] = u
	return u
}

// handleUse is what one node inside a function does with a handle.
func (p *planner) handleUse(c consumer) use {
	op := c.node.GetOp()
	switch {
	case writesVariable(op):
		return use{writes: true}
	case generatorOps[op]:
		return use{writes: true, generator: true}
	case asksOnly[op]:
		return use{}
	case op == "ResourceGather", op == "ResourceGatherNd":
		return use{shows: true}
	}
	u := p.handedOver(c.node, c.index)
	if u.returned && !strings.HasSuffix(op, "While") {
		return anything
	}
	return u
}

// shows tells whether values inside a function have any effect but to start stateless random ops, or to be kept in a
// variable again.
func (p *planner) shows(f *flow, values []string) bool {
	seen := map[string]bool{}
	for len(values) > 0 {
		name := values[0]
		values = values[1:]
		if f.returned[name] || p.visits >= maxVisits {
			return true
		}
		for _, c := range f.consumers[name] {
			p.visits++
			op := c.node.GetOp()
			switch {
			case startsRandom(p.g.ops.byName[op], c.index), writesVariable(op), op == "Shape":
			case movesNumbers[op]:
				if !seen[c.node.GetName()] {
					seen[c.node.GetName()] = true
					values = append(values, c.node.GetName())
				}
			case strings.HasSuffix(op, "PartitionedCall"), strings.HasSuffix(op, "If"), strings.HasSuffix(op, "Case"):
				if p.valueShows(c) {
					return true
				}
			default:
				return true
			}
		}
	}
	return false
}

func (p *planner) valueShows(c consumer) bool {
	args, ok := p.receivers(c.node, c.index)
	if !ok {
		return true
	}
	for _, arg := range args {
		known, ok := p.valueUses[arg]
		if !ok {
			name := p.g.functions[arg.function].GetSignature().GetInputArg()[arg.index].GetName()
			known = p.shows(p.flowOf(arg.function), []string{name})
			p.valueUses[arg] = known
		}
		if known {
			return true
		}
	}
	return false
}

// startsRandom tells whether an input of a stateless random op is its seed.
func startsRandom(def *tf.OpDef, input int) bool {
	if !strings.HasPrefix(def.GetName(), "Stateless") && def.GetName() != "RandomIndexShuffle" || input >= len(def.GetInputArg()) {
		return false
	}
	switch def.GetInputArg()[input].GetName() {
	case "seed", "key", "counter":
		return true
	}
	return false
}

// writesVariable tells whether an op gives the variable in its first input another value.
func writesVariable(op string) bool {
	switch op {
	case "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceStridedSliceAssign":
		return true
	}
	return strings.HasPrefix(op, "ResourceScatter")
}

// asksOnly are ops that take the handle of a variable and do not look at its value.
var asksOnly = wordSet(`VarIsInitializedOp VariableShape DisableCopyOnRead IsResourceHandleRefCounting`)

// movesNumbers are the ops that stand between a generator's state and the random op that it starts.
var movesNumbers = wordSet(`
	Identity IdentityN Cast Bitcast FloorMod Mod TruncateMod Add AddV2 Sub Mul BitwiseXor BitwiseAnd BitwiseOr LeftShift
	RightShift StridedSlice Slice Reshape Squeeze ExpandDims Pack Unpack ConcatV2 Split GatherV2
`)

// assignments gives the nodes that set the values variables travel with, by the name of the handle's node.
func (g *Graph) assignments() map[string]*tf.NodeDef {
	found := map[string]*tf.NodeDef{}
	for _, n := range g.order {
		if n.GetOp() == "AssignVariableOp" {
			name, _, _ := splitInput(n.GetInput()[0])
			found[name] = n
		}
	}
	return found
}
