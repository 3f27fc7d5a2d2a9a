package graph

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Use says what a dataset's functions do with a variable that they receive.
type Use struct {
	// Writes is set if they change its value.
	Writes bool
	// valueUsed is set if its value has another use than to seed stateless random ops.
	valueUsed bool
	// Generator is set if it is the state of a tf.random.Generator, whose own ops draw from it.
	Generator bool
	// returned is set if a function returns the handle to its caller.
	returned bool
}

// IsRandomState reports whether a variable is only the state of a random generator, such as Keras'
// SeedGenerator. Another value would only change the random values.
func (u Use) IsRandomState() bool { return u.Generator || (u.Writes && !u.valueUsed) }

// IsCounter reports whether functions change a variable that is not only the state of a random generator.
func (u Use) IsCounter() bool { return u.Writes && !u.IsRandomState() }

func (u *Use) add(o Use) {
	u.Writes = u.Writes || o.Writes
	u.valueUsed = u.valueUsed || o.valueUsed
	u.Generator = u.Generator || o.Generator
}

// anything is the assumed use of a handle that the analysis cannot follow.
var anything = Use{Writes: true, valueUsed: true}

// argument is one argument of one function.
type argument struct {
	function string
	index    int
}

// VariableUse is a variable that a step passes to its functions.
type VariableUse struct {
	Handle *tf.NodeDef
	Use    Use
}

// Variables determines how the functions of one dataset use variables, and caches the results.
type Variables struct {
	g         *Graph
	flows     map[string]*flow
	uses      map[argument]Use
	valueUses map[argument]bool
	// visits counts the inputs that the analysis has visited.
	visits int
}

// NewVariables returns an analysis of a graph's variables.
func NewVariables(g *Graph) *Variables {
	return &Variables{g: g, flows: map[string]*flow{}, uses: map[argument]Use{}, valueUses: map[argument]bool{}}
}

// maxVisits bounds the analysis, because a hostile graph could make it quadratic.
const maxVisits = 5_000_000

// Captures returns the variables that a node outside of functions uses.
func (v *Variables) Captures(n *tf.NodeDef) []VariableUse {
	var found []VariableUse
	for i, input := range n.GetInput() {
		if strings.HasPrefix(input, "^") {
			break
		}
		from := v.g.NodeOf(input)
		for from.GetOp() == "Identity" {
			from = v.g.NodeOf(from.GetInput()[0])
		}
		if from.GetOp() == "VarHandleOp" {
			c := VariableUse{Handle: from}
			c.Use.add(v.useByFunctions(n, i))
			found = append(found, c)
		}
	}
	return found
}

// useByFunctions returns what functions do with a handle that a node passes to them through one of its inputs.
func (v *Variables) useByFunctions(n *tf.NodeDef, input int) Use {
	args, ok := v.receivers(n, input)
	if !ok {
		return anything
	}
	var u Use
	for _, arg := range args {
		sub := v.argumentUse(arg)
		u.add(sub)
		u.returned = u.returned || sub.returned
	}
	return u
}

// receivers returns the function arguments that receive one input of a node. Captured inputs are the last
// arguments of a function. A call passes all arguments, so the same rule holds.
func (v *Variables) receivers(n *tf.NodeDef, input int) ([]argument, bool) {
	at := 0
	for _, arg := range v.g.ops.Def(n.GetOp()).GetInputArg() {
		size, ok := v.g.ArgSize(arg, n)
		if !ok {
			return nil, false
		}
		if input >= at+size {
			at += size
			continue
		}
		called := nodedef.CalledFunctions(n)
		if only, ok := strings.CutSuffix(arg.GetName(), "_other_arguments"); ok {
			called = []string{n.GetAttr()[only].GetFunc().GetName()}
		}
		var args []argument
		for _, name := range called {
			index := len(v.g.functions[name].GetSignature().GetInputArg()) - size + input - at
			if index < 0 || v.g.functions[name] == nil {
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

// flow contains the users of each value inside a function.
type flow struct {
	consumers map[string][]consumer
	returned  map[string]bool
}

func (v *Variables) flowOf(function string) *flow {
	if f, ok := v.flows[function]; ok {
		return f
	}
	f := &flow{consumers: map[string][]consumer{}, returned: map[string]bool{}}
	v.flows[function] = f
	def := v.g.functions[function]
	for _, n := range def.GetNodeDef() {
		for i, input := range n.GetInput() {
			if !strings.HasPrefix(input, "^") {
				name := nodedef.InputNode(input)
				f.consumers[name] = append(f.consumers[name], consumer{n, i, input})
			}
		}
	}
	for _, ref := range def.GetRet() {
		f.returned[nodedef.InputNode(ref)] = true
	}
	return f
}

// argumentUse follows a handle through a function.
func (v *Variables) argumentUse(arg argument) Use {
	if known, ok := v.uses[arg]; ok {
		return known
	}
	f := v.flowOf(arg.function)
	handles := []string{v.g.functions[arg.function].GetSignature().GetInputArg()[arg.index].GetName()}
	seen := map[string]bool{}
	var values []string
	var u Use
	for len(handles) > 0 && v.visits < maxVisits {
		name := handles[0]
		handles = handles[1:]
		u.returned = u.returned || f.returned[name]
		for _, c := range f.consumers[name] {
			v.visits++
			if op := c.node.GetOp(); op == "Identity" && !seen[c.node.GetName()] {
				seen[c.node.GetName()] = true
				handles = append(handles, c.node.GetName())
			} else if op == "ReadVariableOp" {
				values = append(values, c.node.GetName())
			} else if op != "Identity" {
				u.add(v.handleUse(c))
			}
		}
	}
	u.valueUsed = u.valueUsed || v.usesValues(f, values)
	if v.visits >= maxVisits {
		u = anything
	}
	v.uses[arg] = u
	return u
}

// handleUse returns what one node inside a function does with a handle.
func (v *Variables) handleUse(c consumer) Use {
	op := c.node.GetOp()
	switch {
	case ops.WritesVariable(op):
		return Use{Writes: true}
	case ops.GeneratorOps[op]:
		return Use{Writes: true, Generator: true}
	case ops.HandleOnlyOps[op]:
		return Use{}
	case op == "ResourceGather", op == "ResourceGatherNd":
		return Use{valueUsed: true}
	}
	u := v.useByFunctions(c.node, c.index)
	if u.returned && !strings.HasSuffix(op, "While") {
		return anything
	}
	return u
}

// usesValues reports whether values inside a function have any other use than to seed stateless random ops, or to
// be stored in a variable again.
func (v *Variables) usesValues(f *flow, values []string) bool {
	seen := map[string]bool{}
	for len(values) > 0 {
		name := values[0]
		values = values[1:]
		if f.returned[name] || v.visits >= maxVisits {
			return true
		}
		for _, c := range f.consumers[name] {
			v.visits++
			op := c.node.GetOp()
			switch {
			case isSeedInput(v.g.ops.Def(op), c.index), ops.WritesVariable(op), op == "Shape":
			case seedArithmetic[op]:
				if !seen[c.node.GetName()] {
					seen[c.node.GetName()] = true
					values = append(values, c.node.GetName())
				}
			case strings.HasSuffix(op, "PartitionedCall"), strings.HasSuffix(op, "If"), strings.HasSuffix(op, "Case"):
				if v.calleeUsesValue(c) {
					return true
				}
			default:
				return true
			}
		}
	}
	return false
}

func (v *Variables) calleeUsesValue(c consumer) bool {
	args, ok := v.receivers(c.node, c.index)
	if !ok {
		return true
	}
	for _, arg := range args {
		known, ok := v.valueUses[arg]
		if !ok {
			name := v.g.functions[arg.function].GetSignature().GetInputArg()[arg.index].GetName()
			known = v.usesValues(v.flowOf(arg.function), []string{name})
			v.valueUses[arg] = known
		}
		if known {
			return true
		}
	}
	return false
}

// isSeedInput reports whether an input of a stateless random op is its seed.
func isSeedInput(def *tf.OpDef, input int) bool {
	if !strings.HasPrefix(def.GetName(), "Stateless") && def.GetName() != "RandomIndexShuffle" || input >= len(def.GetInputArg()) {
		return false
	}
	switch def.GetInputArg()[input].GetName() {
	case "seed", "key", "counter":
		return true
	}
	return false
}

// seedArithmetic lists the ops that may come between a generator's state and the random op that it seeds.
var seedArithmetic = ops.Names(`
	Identity IdentityN Cast Bitcast FloorMod Mod TruncateMod Add AddV2 Sub Mul BitwiseXor BitwiseAnd BitwiseOr LeftShift
	RightShift StridedSlice Slice Reshape Squeeze ExpandDims Pack Unpack ConcatV2 Split GatherV2
`)

// Assignments maps the node of each variable's handle to the node that sets the variable's initial value.
func (g *Graph) Assignments() map[string]*tf.NodeDef {
	found := map[string]*tf.NodeDef{}
	for _, n := range g.order {
		if n.GetOp() == "AssignVariableOp" {
			name, _, _ := nodedef.SplitInput(n.GetInput()[0])
			found[name] = n
		}
	}
	return found
}
