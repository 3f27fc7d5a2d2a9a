package pooled

import (
	"fmt"
	"maps"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// argument is a constant of the stream's graph that becomes an argument. function is "" for a node of the graph.
type argument struct {
	function, node string
	dtype          tf.DataType
}

// argumentName is the name of an argument in every function that gets it.
func argumentName(i int) string { return fmt.Sprintf("pecan_argument_%d", i) }

// findArguments lists the arguments in the order of Separate.
func (t *Template) findArguments() {
	for _, n := range t.def.GetNode() {
		if isArgument(argumentPrefixes, n.GetOp(), n.GetName()) {
			t.arguments = append(t.arguments, argument{"", n.GetName(), nodedef.Tensor(n).GetDtype()})
		}
	}
	for _, f := range t.def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			if isArgument(nestedPrefixes, n.GetOp(), n.GetName()) {
				t.arguments = append(t.arguments, argument{f.GetSignature().GetName(), n.GetName(), nodedef.Tensor(n).GetDtype()})
			}
		}
	}
}

// passArguments finds which arguments each function needs for its own constants and for the functions that it calls.
// All functions that one node calls get the same arguments.
func (t *Template) passArguments() error {
	t.needs = map[string]map[int]bool{}
	for name := range t.functions {
		t.needs[name] = map[int]bool{}
	}
	for i, a := range t.arguments {
		if a.function != "" {
			t.needs[a.function][i] = true
		}
	}
	for changed := true; changed; {
		changed = false
		pass := func(n *tf.NodeDef, caller map[int]bool) error {
			all := t.passed(n)
			if len(all) == 0 {
				return nil
			}
			if !t.canPass(n) {
				return fmt.Errorf("node %s is a %s, which passes no arguments to its functions", nodedef.Quote(n.GetName()), n.GetOp())
			}
			takers := t.calledNeeds(n)
			if caller != nil {
				takers = append(takers, caller)
			}
			for _, needs := range takers {
				before := len(needs)
				maps.Copy(needs, all)
				changed = changed || len(needs) > before
			}
			return nil
		}
		for _, n := range t.def.GetNode() {
			if err := pass(n, nil); err != nil {
				return err
			}
		}
		for name, f := range t.functions {
			for _, n := range f.GetNodeDef() {
				if err := pass(n, t.needs[name]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// calledNeeds returns the needs of the functions that a node calls.
func (t *Template) calledNeeds(n *tf.NodeDef) (all []map[int]bool) {
	for _, called := range nodedef.CalledFunctions(n) {
		if needs := t.needs[called]; needs != nil {
			all = append(all, needs)
		}
	}
	return all
}

// passed returns the arguments that a node passes to its functions.
func (t *Template) passed(n *tf.NodeDef) map[int]bool {
	all := map[int]bool{}
	for _, needs := range t.calledNeeds(n) {
		maps.Copy(all, needs)
	}
	return all
}

const (
	capturedArg   = "other_arguments"
	capturedTypes = "Targuments"
)

// canPass returns whether a node can pass further arguments to its functions.
func (t *Template) canPass(n *tf.NodeDef) bool {
	if ops.CallsOnce[n.GetOp()] {
		return true
	}
	return len(nodedef.CalledFunctions(n)) == 1 && ops.AttrDef(t.ops.Def(n.GetOp()), capturedTypes) != nil && t.capturedEnd(n) >= 0
}

// capturedEnd is the index after the last captured input of a dataset node; -1 without captured inputs.
func (t *Template) capturedEnd(n *tf.NodeDef) int {
	at := 0
	for _, arg := range t.ops.Def(n.GetOp()).GetInputArg() {
		at += argSize(arg, n)
		if arg.GetName() == capturedArg {
			return at
		}
	}
	return -1
}

// addPassed adds the arguments that a node passes to its functions.
func (t *Template) addPassed(n *tf.NodeDef) {
	indices := slices.Sorted(maps.Keys(t.passed(n)))
	if len(indices) == 0 {
		return
	}
	attr, at := capturedTypes, 0
	if ops.CallsOnce[n.GetOp()] {
		attr, at = "Tin", nodedef.DataInputCount(n)
	} else {
		at = t.capturedEnd(n)
	}
	types := slices.Clone(n.GetAttr()[attr].GetList().GetType())
	inputs := slices.Clone(n.GetInput())
	for i, index := range indices {
		types = append(types, t.arguments[index].dtype)
		inputs = slices.Insert(inputs, at+i, argumentName(index))
	}
	n.Input, n.Attr[attr] = inputs, nodedef.TypesAttr(types)
}

// withArguments returns a function that gets its arguments instead of having them as constants.
func (t *Template) withArguments(f *tf.FunctionDef) *tf.FunctionDef {
	name := f.GetSignature().GetName()
	indices := slices.Sorted(maps.Keys(t.needs[name]))
	if len(indices) == 0 {
		return f
	}
	out := nodedef.CopySignature(f)
	out.Signature = nodedef.RenameSignature(f.GetSignature(), name)
	out.Attr = maps.Clone(f.GetAttr())
	delete(out.Attr, "_input_shapes")
	out.Signature.InputArg = slices.Clone(f.GetSignature().GetInputArg())
	lifted := map[string]string{}
	for _, i := range indices {
		out.Signature.InputArg = append(out.Signature.InputArg, &tf.OpDef_ArgDef{Name: argumentName(i), Type: t.arguments[i].dtype})
		if t.arguments[i].function == name {
			lifted[t.arguments[i].node] = argumentName(i)
		}
	}
	for _, n := range f.GetNodeDef() {
		if lifted[n.GetName()] != "" {
			continue
		}
		c := nodedef.Copy(n)
		c.Input = slices.DeleteFunc(c.Input, func(input string) bool { return input[0] == '^' && lifted[input[1:]] != "" })
		for i, input := range c.Input {
			if to := lifted[nodedef.InputNode(input)]; to != "" {
				c.Input[i] = to
			}
		}
		t.addPassed(c)
		out.NodeDef = append(out.NodeDef, c)
	}
	out.Ret = maps.Clone(f.GetRet())
	for result, input := range out.Ret {
		if to := lifted[nodedef.InputNode(input)]; to != "" {
			out.Ret[result] = to
		}
	}
	return out
}
