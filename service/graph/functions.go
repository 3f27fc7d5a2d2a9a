package graph

import (
	"sort"
	"strconv"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// checkFunctions holds each function against its signature, and the calls among them against each other.
func (g *Graph) checkFunctions() error {
	for _, f := range g.def.GetLibrary().GetFunction() {
		if err := g.checkFunction(f); err != nil {
			return err
		}
	}
	if err := g.eachNode(func(n *tf.NodeDef, function string) error {
		for _, called := range calledFunctions(n) {
			if g.functions[called] == nil {
				return reason.New(reason.GraphFunction, "node %s calls the function %s, which the dataset's graph does not have", quoteName(nodePath(function, n)), quoteName(called))
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
	sort.Strings(names)
	calls := func(name string) []string {
		var out []string
		for _, n := range g.functions[name].GetNodeDef() {
			out = append(out, calledFunctions(n)...)
		}
		return out
	}
	sorted, cycle := sortNodes(names, calls)
	if cycle != "" {
		return reason.New(reason.GraphFunction, "the function %s calls itself without bound", quoteName(cycle))
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
			return reason.New(reason.GraphLimit, "the function %s grows to more than %d nodes with all that it calls: simplify the pipeline", quoteName(name), g.limits.MaxNodes)
		}
		if depth[name] > g.limits.MaxDepth {
			return reason.New(reason.GraphLimit, "functions of the dataset call each other %d deep (%s), the limit is %d", depth[name], quoteName(name), g.limits.MaxDepth)
		}
	}
	return nil
}

// calledFunctions are the functions that the attributes of a node name, in a fixed order.
func calledFunctions(n *tf.NodeDef) []string {
	var keys []string
	for key, v := range n.GetAttr() {
		switch x := v.GetValue().(type) {
		case *tf.AttrValue_Func:
			keys = append(keys, key)
		case *tf.AttrValue_List:
			if len(x.List.GetFunc()) > 0 {
				keys = append(keys, key)
			}
		}
	}
	sort.Strings(keys)
	var called []string
	for _, key := range keys {
		switch x := n.Attr[key].GetValue().(type) {
		case *tf.AttrValue_Func:
			if x.Func.GetName() != "" {
				called = append(called, x.Func.GetName())
			}
		case *tf.AttrValue_List:
			for _, f := range x.List.GetFunc() {
				called = append(called, f.GetName())
			}
		}
	}
	return called
}

func (g *Graph) checkFunction(f *tf.FunctionDef) error {
	name := f.GetSignature().GetName()
	bad := func(format string, args ...any) error {
		return reason.New(reason.GraphFunction, "the function "+quoteName(name)+" "+format, args...)
	}
	args := map[string]bool{}
	for _, a := range f.GetSignature().GetInputArg() {
		if args[a.GetName()] {
			return bad("has two arguments named %s", quoteName(a.GetName()))
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
			return bad("has two nodes named %s", quoteName(n.GetName()))
		}
		nodes[n.GetName()] = n
		names = append(names, n.GetName())
	}
	for _, n := range f.GetNodeDef() {
		if err := g.checkAttrs(n, nodePath(name, n), reason.GraphFunction); err != nil {
			return err
		}
		for _, input := range n.GetInput() {
			if !g.resolves(input, args, nodes) {
				return bad("has a node %s that takes %s, which is not there", quoteName(n.GetName()), quoteName(input))
			}
		}
		if want, ok := g.inputCount(n); ok && want != dataInputs(n) {
			return bad("has a node %s (%s) with %d inputs, its attributes call for %d", quoteName(n.GetName()), n.GetOp(), dataInputs(n), want)
		}
	}
	for _, out := range f.GetSignature().GetOutputArg() {
		source, ok := f.GetRet()[out.GetName()]
		if !ok || !g.resolves(source, args, nodes) {
			return bad("gives no value for its result %s", quoteName(out.GetName()))
		}
	}
	for _, node := range f.GetControlRet() {
		if nodes[node] == nil {
			return bad("waits for the node %s, which is not there", quoteName(node))
		}
	}
	_, cycle := sortBody(names, nodes)
	if cycle != "" {
		return bad("has a node %s that depends on itself", quoteName(cycle))
	}
	return nil
}

// sortBody puts the nodes of a function in an order in which inputs come before users.
func sortBody(names []string, nodes map[string]*tf.NodeDef) (sorted []string, cycle string) {
	return sortNodes(names, func(node string) []string {
		var from []string
		for _, input := range nodes[node].GetInput() {
			if source := functionInputNode(input); nodes[source] != nil {
				from = append(from, source)
			}
		}
		return from
	})
}

// functionInputNode is the node or argument that an input inside a function names.
func functionInputNode(input string) string {
	input = strings.TrimPrefix(input, "^")
	name, _, _ := strings.Cut(input, ":")
	return name
}

// resolves tells whether an input inside a function ("arg", "node:output:index", "^node") stands for something.
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
	outputs := g.ops.byName[n.GetOp()].GetOutputArg()
	if len(parts) == 2 {
		total, ok := g.argCount(outputs, n)
		return ok && index < total
	}
	for _, out := range outputs {
		if out.GetName() == parts[1] {
			size, ok := g.argSize(out, n)
			return ok && index < size
		}
	}
	return false
}
