package cacheable

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A worker notices a changed file only if the dataset's graph names it. So the names that a step opens must be constants of
// the graph. They reach the step as elements of a list, unchanged.

// readsComputedNames returns a step that opens files whose names may be computed, nil if there is none. It looks at a
// step and everything upstream.
func (r *Rules) readsComputedNames(step *graph.Step) (reader *graph.Step) {
	step.Walk(func(s *graph.Step) {
		known := r.arguments(s)
		for _, name := range nodedef.CalledFunctions(s.Node) {
			if !r.opensOnly(name, known) {
				reader = s
			}
		}
	})
	return reader
}

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
	case ops.PassThrough, ops.Shuffled, ops.Positional, ops.Repeated, ops.Cached, ops.Asserted, ops.Batched, ops.Rebatched, ops.PerElement:
		// A filter, an unbatch and a batch return the values that they read.
		if len(s.In) == 1 && (len(calls) == 0 || ops.FunctionAttr(s.Node.GetOp()) == "predicate") {
			return r.constantNames(s.In[0])
		}
	}
	return nil
}

// constantResults reports for each result of a function whether it is a constant.
func (r *Rules) constantResults(function string, known func(arg int) bool) (results []bool) {
	f := r.g.Function(function)
	b := r.newBody(f, known)
	for _, out := range f.GetSignature().GetOutputArg() {
		results = append(results, b.isConstant(f.GetRet()[out.GetName()]))
	}
	return results
}

// opensOnly reports whether a function opens only files whose names are constants. known says which arguments are.
func (r *Rules) opensOnly(function string, known func(arg int) bool) bool {
	f := r.g.Function(function)
	b := r.newBody(f, known)
	for _, n := range f.GetNodeDef() {
		calls := nodedef.CalledFunctions(n)
		if len(calls) == 0 && !r.opensFile(n) {
			continue
		}
		constant := b.areConstant(n)
		if r.opensFile(n) && !constant {
			return false
		}
		for _, called := range calls {
			if !r.calledOpensOnly(called, constant && r.passesInputs(n)) {
				return false
			}
		}
	}
	return true
}

// calledOpensOnly is opensOnly for a function. constants says whether all of its arguments are constants; otherwise, none
// counts as one.
func (r *Rules) calledOpensOnly(function string, constants bool) bool {
	key := calledFunction{function, constants}
	if only, ok := r.opened[key]; ok {
		return only
	}
	r.opened[key] = r.opensOnly(function, func(int) bool { return constants })
	return r.opened[key]
}

// passesInputs reports whether a node calls its functions with values of its inputs only.
func (r *Rules) passesInputs(n *tf.NodeDef) bool {
	switch n.GetOp() {
	case "PartitionedCall", "StatefulPartitionedCall":
		return true
	}
	kind := r.g.RuleOf(n).Kind
	return r.g.Ops().IsDataset(n.GetOp()) && (kind == ops.OneToOne || kind == ops.PerElement)
}

type calledFunction struct {
	name      string
	constants bool
}

// opensFile reports whether an op opens files that its inputs name.
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
