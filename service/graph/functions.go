package graph

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// checkFunctions compares each function with its signature, and checks the calls between functions.
func (g *Graph) checkFunctions() error {
	for _, f := range g.def.GetLibrary().GetFunction() {
		if err := g.checkFunction(f); err != nil {
			return err
		}
	}
	if err := g.EachNode(func(n *tf.NodeDef, function string) error {
		for _, called := range nodedef.CalledFunctions(n) {
			if g.functions[called] == nil {
				return reason.New(reason.GraphFunction, "node %s calls the function %s, which is not in the dataset's graph", nodedef.Quote(nodedef.Path(function, n)), nodedef.Quote(called))
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return g.checkCallDepth()
}

// checkCallDepth refuses functions that reach themselves, and chains of calls beyond the limit.
func (g *Graph) checkCallDepth() error {
	names := make([]string, 0, len(g.functions))
	for name := range g.functions {
		names = append(names, name)
	}
	slices.Sort(names)
	calls := func(name string) []string {
		var out []string
		for _, n := range g.functions[name].GetNodeDef() {
			out = append(out, nodedef.CalledFunctions(n)...)
		}
		return out
	}
	sorted, cycle := sortNodes(names, calls)
	if cycle != "" {
		return reason.New(reason.GraphFunction, "the function %s calls itself", nodedef.Quote(cycle))
	}
	depth := make(map[string]int, len(sorted))
	size := make(map[string]int, len(sorted))
	for _, name := range sorted {
		deepest := 0
		for _, called := range calls(name) {
			deepest = max(deepest, depth[called])
		}
		depth[name] = deepest + 1
		size[name] = len(g.functions[name].GetNodeDef())
		for _, called := range calls(name) {
			size[name] += size[called]
		}
		if size[name] > g.limits.MaxNodes {
			return reason.New(reason.GraphLimit, "the function %s has more than %d nodes, including the functions that it calls: simplify the pipeline", nodedef.Quote(name), g.limits.MaxNodes)
		}
		if depth[name] > g.limits.MaxDepth {
			return reason.New(reason.GraphLimit, "functions of the dataset call each other %d deep (%s), and the limit is %d", depth[name], nodedef.Quote(name), g.limits.MaxDepth)
		}
	}
	return nil
}

// checkFunction refuses a function whose nodes have equal names, inputs that do not exist, the wrong number of inputs, or
// cycles. Later passes rely on that.
func (g *Graph) checkFunction(f *tf.FunctionDef) error {
	name := f.GetSignature().GetName()
	bad := func(format string, args ...any) error {
		return reason.New(reason.GraphFunction, "the function "+nodedef.Quote(name)+" "+format, args...)
	}
	args := map[string]bool{}
	for _, a := range f.GetSignature().GetInputArg() {
		if args[a.GetName()] {
			return bad("has two arguments named %s", nodedef.Quote(a.GetName()))
		}
		args[a.GetName()] = true
	}
	nodes := map[string]*tf.NodeDef{}
	names := make([]string, 0, len(f.GetNodeDef()))
	for _, n := range f.GetNodeDef() {
		if err := g.checkName("node", n.GetName()); err != nil {
			return err
		}
		if nodes[n.GetName()] != nil || args[n.GetName()] {
			return bad("has two nodes named %s", nodedef.Quote(n.GetName()))
		}
		nodes[n.GetName()] = n
		names = append(names, n.GetName())
	}
	for _, n := range f.GetNodeDef() {
		if err := g.checkAttrs(n, nodedef.Path(name, n), reason.GraphFunction); err != nil {
			return err
		}
		for _, input := range n.GetInput() {
			if !g.resolves(input, args, nodes) {
				return bad("has a node %s that takes %s, which does not exist", nodedef.Quote(n.GetName()), nodedef.Quote(input))
			}
		}
		if want, ok := g.inputCount(n); ok && want != nodedef.DataInputCount(n) {
			return bad("has a node %s (%s) with %d inputs, but its attributes require %d", nodedef.Quote(n.GetName()), n.GetOp(), nodedef.DataInputCount(n), want)
		}
	}
	for _, out := range f.GetSignature().GetOutputArg() {
		source, ok := f.GetRet()[out.GetName()]
		if !ok || !g.resolves(source, args, nodes) {
			return bad("has no value for its result %s", nodedef.Quote(out.GetName()))
		}
	}
	for _, node := range f.GetControlRet() {
		if nodes[node] == nil {
			return bad("waits for the node %s, which does not exist", nodedef.Quote(node))
		}
	}
	_, cycle := SortFunctionNodes(names, nodes)
	if cycle != "" {
		return bad("has a node %s that depends on itself", nodedef.Quote(cycle))
	}
	return nil
}

// SortFunctionNodes sorts the nodes of a function so that inputs come before their users.
func SortFunctionNodes(names []string, nodes map[string]*tf.NodeDef) (sorted []string, cycle string) {
	return sortNodes(names, func(node string) []string {
		var from []string
		for _, input := range nodes[node].GetInput() {
			if source := nodedef.InputNode(input); nodes[source] != nil {
				from = append(from, source)
			}
		}
		return from
	})
}

// resolves reports whether an input inside a function ("arg", "node:output:index", "^node") refers to
// something that exists.
func (g *Graph) resolves(input string, args map[string]bool, nodes map[string]*tf.NodeDef) bool {
	if control, ok := strings.CutPrefix(input, "^"); ok {
		return nodes[control] != nil || args[control]
	}
	parts := strings.Split(input, ":")
	if len(parts) == 1 || args[parts[0]] {
		return args[parts[0]]
	}
	n := nodes[parts[0]]
	if n == nil || len(parts) > 3 {
		return false
	}
	index, err := strconv.Atoi(parts[len(parts)-1])
	if err != nil || index < 0 {
		return false
	}
	outputs := g.ops.Def(n.GetOp()).GetOutputArg()
	if len(parts) == 2 {
		total, ok := g.argCount(outputs, n)
		return ok && index < total
	}
	for _, out := range outputs {
		if out.GetName() == parts[1] {
			size, ok := g.ArgSize(out, n)
			return ok && index < size
		}
	}
	return false
}

// checkArity compares functions with the steps and calls that use them, if both sides are in the graph.
func (g *Graph) checkArity() error {
	if err := g.checkDatasetInputs(); err != nil {
		return err
	}
	for _, n := range g.order {
		key := ops.FunctionAttr(n.GetOp())
		name := n.GetAttr()[key].GetFunc().GetName()
		if key == "" || name == "" {
			continue
		}
		input := g.NodeOf(n.GetInput()[0])
		args := len(g.OutputTypes(input)) + len(g.Attr(n, "Targuments").GetList().GetType())
		results := 1
		if ops.Rules[n.GetOp()].Kind == ops.OneToOne {
			results = len(g.OutputTypes(n))
		}
		if err := g.checkCall(n, n.GetName(), name, args, results); err != nil {
			return err
		}
	}
	return g.EachNode(func(n *tf.NodeDef, function string) error {
		if n.GetOp() != "PartitionedCall" && n.GetOp() != "StatefulPartitionedCall" {
			return nil
		}
		name := n.GetAttr()["f"].GetFunc().GetName()
		return g.checkCall(n, nodedef.Path(function, n), name, len(n.GetAttr()["Tin"].GetList().GetType()), len(n.GetAttr()["Tout"].GetList().GetType()))
	})
}

// checkDatasetInputs checks that datasets read from datasets.
func (g *Graph) checkDatasetInputs() error {
	for _, n := range g.order {
		if !g.ops.IsDataset(n.GetOp()) {
			continue
		}
		at := 0
		for _, arg := range g.ops.Def(n.GetOp()).GetInputArg() {
			size, _ := g.ArgSize(arg, n)
			for i := at; datasetArgs[arg.GetName()] && i < at+size; i++ {
				if from := g.NodeOf(n.GetInput()[i]); !g.ops.IsDataset(from.GetOp()) {
					return reason.New(reason.GraphStructure, "node %s takes its elements from %s, which is a %s and not a dataset", nodedef.Quote(n.GetName()), nodedef.Quote(from.GetName()), from.GetOp())
				}
			}
			at += size
		}
	}
	return nil
}

func (g *Graph) checkCall(n *tf.NodeDef, path, name string, args, results int) error {
	sig := g.functions[name].GetSignature()
	if len(sig.GetInputArg()) != args {
		return reason.New(reason.GraphFunction, "the function %s takes %d arguments, but node %s (%s) passes %d", nodedef.Quote(name), len(sig.GetInputArg()), nodedef.Quote(path), n.GetOp(), args)
	}
	if len(sig.GetOutputArg()) != results {
		return reason.New(reason.GraphFunction, "the function %s returns %d results, but node %s (%s) needs %d", nodedef.Quote(name), len(sig.GetOutputArg()), nodedef.Quote(path), n.GetOp(), results)
	}
	return nil
}
