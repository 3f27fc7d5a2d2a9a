package cacheable

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A worker notices a changed file only if the dataset's graph names it. So the names that a step opens must be constants of
// the graph. They reach the step as elements of a list, unchanged.

// opensComputedNames returns the first step, from the source on, that opens files whose names may be computed. It returns nil
// if there is none. Upstream of a mark which says that files never change, names do not matter.
func (r *Rules) opensComputedNames(s *graph.Step) *graph.Step {
	if mark := r.g.CacheMarkOf(s.Node); mark != nil && mark.Unchanging {
		return nil
	}
	for _, in := range slices.Concat(s.In, s.Captured) {
		if found := r.opensComputedNames(in); found != nil {
			return found
		}
	}
	if s.Node.GetOp() == savedDataset {
		return s
	}
	known := r.arguments(s)
	for _, name := range nodedef.CalledFunctions(s.Node) {
		if !r.opensOnly(name, known) {
			return s
		}
	}
	return nil
}

// savedDataset is the op that reads a saved dataset. It finds the names of the files in a directory.
const savedDataset = "LoadDataset"

// arguments returns which arguments of a step's function are constants of the graph.
func (r *Rules) arguments(s *graph.Step) func(arg int) bool {
	if len(s.In) != 1 || s.Rule.Kind != ops.OneToOne && s.Rule.Kind != ops.PerElement {
		return func(int) bool { return false }
	}
	components := r.constantNames(s.In[0])
	captured := r.g.InputIndex(s.Node, "other_arguments")
	return func(arg int) bool {
		if arg < len(components) {
			return components[arg]
		}
		at := captured + arg - len(components)
		return captured >= 0 && at < len(s.Node.GetInput()) && r.g.NodeOf(s.Node.GetInput()[at]).GetOp() == "Const"
	}
}

// constantNames reports for each component of a step's elements whether its values are constants of the graph.
func (r *Rules) constantNames(s *graph.Step) []bool {
	if known, ok := r.constants[s]; ok {
		return known
	}
	known := r.findConstants(s)
	if n := len(r.g.OutputTypes(s.OutputOf)); len(known) != n {
		known = make([]bool, n)
	}
	r.constants[s] = known
	return known
}

// findConstants returns which components of a step's elements are constants of the graph, such as listed names of files. It
// returns nil if none is known to be.
func (r *Rules) findConstants(s *graph.Step) (known []bool) {
	calls := nodedef.CalledFunctions(s.Node)
	switch s.Rule.Kind {
	case ops.Source:
		known = make([]bool, len(r.g.OutputTypes(s.OutputOf)))
		for i := range known {
			known[i] = s.Node.GetOp() == "TensorSliceDataset" || s.Node.GetOp() == "TensorDataset"
		}
		return known
	case ops.OneToOne:
		if len(calls) == 1 {
			return r.constantResults(calls[0], r.arguments(s))
		}
	case ops.Zipped:
		for _, in := range s.In {
			known = append(known, r.constantNames(in)...)
		}
		return known
	case ops.Concatenated:
		known = slices.Clone(r.constantNames(s.In[0]))
		for _, in := range s.In[1:] {
			names := r.constantNames(in)
			for i := range known {
				known[i] = known[i] && i < len(names) && names[i]
			}
		}
		return known
	case ops.PassThrough, ops.Shuffled, ops.Positional, ops.Repeated, ops.Cached, ops.Asserted, ops.Batched, ops.Rebatched, ops.PerElement:
		// A filter, an unbatch and a batch return the values that they read.
		if len(s.In) == 1 && (len(calls) == 0 || ops.FunctionAttr(s.Node.GetOp()) == "predicate") {
			return r.constantNames(s.In[0])
		}
	}
	return nil
}

// constantResults reports for each result of a function whether it is a constant.
func (r *Rules) constantResults(function string, known func(arg int) bool) []bool {
	f := r.g.Function(function)
	call, known := r.newCall(f, known)
	if results, ok := r.results[call]; ok {
		return results
	}
	b, results := r.newBody(f, known), []bool{}
	for _, out := range f.GetSignature().GetOutputArg() {
		results = append(results, b.isConstant(f.GetRet()[out.GetName()]))
	}
	r.results[call] = results
	return results
}

// opensOnly reports whether a function opens only files whose names are constants. known says which arguments are.
func (r *Rules) opensOnly(function string, known func(arg int) bool) bool {
	f := r.g.Function(function)
	call, known := r.newCall(f, known)
	only, ok := r.opened[call]
	if !ok {
		only = r.bodyOpensOnly(f, known)
		r.opened[call] = only
	}
	return only
}

func (r *Rules) bodyOpensOnly(f *tf.FunctionDef, known func(arg int) bool) bool {
	b := r.newBody(f, known)
	for _, n := range f.GetNodeDef() {
		if n.GetOp() == savedDataset || r.opensFile(n) && !b.areConstant(n) {
			return false
		}
		for _, called := range nodedef.CalledFunctions(n) {
			if !r.opensOnly(called, b.argumentsOf(n)) {
				return false
			}
		}
	}
	return true
}

// argumentsOf returns which arguments of the functions that a node calls are constants.
func (b *body) argumentsOf(n *tf.NodeDef) func(arg int) bool {
	if calling[n.GetOp()] {
		return func(arg int) bool { return arg < nodedef.DataInputCount(n) && b.isConstant(n.GetInput()[arg]) }
	}
	// A dataset calls its functions with values of its inputs.
	kind := b.g.RuleOf(n).Kind
	constant := b.g.Ops().IsDataset(n.GetOp()) && (kind == ops.OneToOne || kind == ops.PerElement) && b.areConstant(n)
	return func(int) bool { return constant }
}

// mostCalls bounds the different calls of one function that are looked at. In further ones, no argument counts as a constant.
const mostCalls = 16

// calledFunction is a function, and for each argument 1 if it is a constant, else 0.
type calledFunction struct{ name, constants string }

// newCall returns a call of a function, and which of its arguments count as constants.
func (r *Rules) newCall(f *tf.FunctionDef, known func(arg int) bool) (calledFunction, func(arg int) bool) {
	name, constants := f.GetSignature().GetName(), make([]byte, len(f.GetSignature().GetInputArg()))
	for i := range constants {
		if constants[i] = '0'; known(i) {
			constants[i] = '1'
		}
	}
	call := calledFunction{name, string(constants)}
	if r.calls[call] {
		return call, known
	}
	if r.called[name] == mostCalls {
		return calledFunction{name, ""}, func(int) bool { return false }
	}
	r.calls[call] = true
	r.called[name]++
	return call, known
}

// opensFile reports whether an op opens files that its inputs name, or finds their names itself.
func (r *Rules) opensFile(n *tf.NodeDef) bool {
	if n.GetOp() == "ReadFile" {
		return true
	}
	rule := r.g.RuleOf(n)
	return r.g.Ops().IsDataset(n.GetOp()) && rule.Kind == ops.Source && rule.Cost >= 2
}

// body is the body of a function. known says which of its arguments are constants, and found says which of its inputs are. A dataset is
// constant if its elements are.
type body struct {
	*Rules
	nodes map[string]*tf.NodeDef
	args  map[string]int
	known func(arg int) bool
	found map[string]bool
}

func (r *Rules) newBody(f *tf.FunctionDef, known func(arg int) bool) *body {
	b := &body{r, map[string]*tf.NodeDef{}, map[string]int{}, known, map[string]bool{}}
	for i, arg := range f.GetSignature().GetInputArg() {
		b.args[arg.GetName()] = i
	}
	for _, n := range f.GetNodeDef() {
		b.nodes[n.GetName()] = n
	}
	return b
}

// copying lists ops whose result has only values of their first input, joining those with values of all inputs.
var (
	copying = ops.Names(`Identity Reshape ExpandDims Squeeze Slice StridedSlice Gather GatherV2 Unpack BroadcastTo Tile`)
	joining = ops.Names(`Pack ConcatV2 TensorDataset TensorSliceDataset ZipDataset ConcatenateDataset`)
)

// calling lists ops that call one function with their inputs.
var calling = ops.Names(`PartitionedCall StatefulPartitionedCall`)

// isConstant reports whether the values of an input in the function are constants of the graph. Parse has checked that no
// node depends on itself.
func (b *body) isConstant(input string) bool {
	if known, ok := b.found[input]; ok {
		return known
	}
	b.found[input] = b.findConstant(input)
	return b.found[input]
}

func (b *body) findConstant(input string) bool {
	name := nodedef.InputNode(input)
	if arg, ok := b.args[name]; ok {
		return b.known(arg)
	}
	n := b.nodes[name]
	switch op := n.GetOp(); {
	case op == "Const":
		return true
	case copying[op], b.repeatsInput(n):
		return nodedef.DataInputCount(n) > 0 && b.isConstant(n.GetInput()[0])
	case op == "IdentityN":
		at := nodedef.OutputIndex(input)
		return at >= 0 && at < nodedef.DataInputCount(n) && b.isConstant(n.GetInput()[at])
	case calling[op]:
		at, called := nodedef.OutputIndex(input), nodedef.CalledFunctions(n)
		if at < 0 || len(called) != 1 {
			return false
		}
		results := b.constantResults(called[0], b.argumentsOf(n))
		return at < len(results) && results[at]
	}
	return joining[n.GetOp()] && b.areConstant(n)
}

// repeatsInput reports whether a dataset has the elements of its only input, or some of them, in any order and in batches.
func (b *body) repeatsInput(n *tf.NodeDef) bool {
	if !b.g.Ops().IsDataset(n.GetOp()) || len(nodedef.CalledFunctions(n)) > 0 {
		return false
	}
	switch b.g.RuleOf(n).Kind {
	case ops.PassThrough, ops.Shuffled, ops.Positional, ops.Repeated, ops.Cached, ops.Asserted, ops.Batched, ops.Rebatched:
		return true
	}
	return false
}

// areConstant reports whether all inputs of a node are constants.
func (b *body) areConstant(n *tf.NodeDef) bool {
	for _, input := range n.GetInput()[:nodedef.DataInputCount(n)] {
		if !b.isConstant(input) {
			return false
		}
	}
	return true
}
