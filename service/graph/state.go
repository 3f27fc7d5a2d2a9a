package graph

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// checkState refuses what a worker could not use: tables without content, variables without a value, and
// handles of objects in the trainer's process. It adds a warning for variables with a value.
func (g *Graph) checkState() error {
	filled := map[string]bool{}
	users := map[string][]*tf.NodeDef{}
	for _, n := range g.def.Node {
		for i, input := range n.GetInput() {
			name, _, control := nodedef.SplitInput(input)
			if control {
				continue
			}
			users[name] = append(users[name], n)
			if i == 0 && (ops.FillsTable(n.GetOp()) || n.GetOp() == "AssignVariableOp") {
				filled[name] = true
			}
		}
	}
	changed, err := g.checkChanges()
	if err != nil {
		return err
	}
	variables := 0
	for _, n := range g.order {
		name := nodedef.Quote(n.GetName())
		switch {
		case ops.IsTable(n.GetOp()) && !filled[n.GetName()]:
			return reason.New(reason.ExternalState, "node %s is a lookup table without content: initialise it before the dataset uses it, or move the step after distribute()", name)
		case n.GetOp() == "VarHandleOp" && !filled[n.GetName()]:
			return reason.New(reason.ExternalState, "node %s is a variable without a value: initialise it before the dataset uses it, or move the step after distribute()", name)
		case parsesHandle(n):
			return reason.New(reason.ExternalState, "node %s makes an object's handle from bytes: remove it from the pipeline", name)
		case n.GetOp() == "VarHandleOp" && !changed[n.GetName()]:
			variables++
		case nodedef.Tensor(n).GetDtype() == tf.DataType_DT_RESOURCE:
			for _, user := range users[n.GetName()] {
				if handles := nodedef.Tensor(n).GetResourceHandleVal(); len(handles) > 0 && strings.Contains(handles[0].GetMaybeTypeName(), "lookup") {
					return reason.New(reason.ExternalState, "node %s (%s) uses a lookup table that TensorFlow does not serialise (node %s), such as a DenseHashTable: %s", nodedef.Quote(user.GetName()),
						user.GetOp(), name, "put its content into a StaticHashTable or a MutableHashTable, which are serialised with the dataset, or move the step after distribute()")
				}
				if !replaceableHandle(user.GetOp()) {
					return reason.New(reason.ExternalState, "node %s (%s) uses an object in the trainer's process (node %s): %s",
						nodedef.Quote(user.GetName()), user.GetOp(), name, "remove it from the pipeline, or move the step after distribute()")
				}
			}
		}
	}
	if variables > 0 {
		g.warnings = append(g.warnings, fmt.Sprintf("%d variable(s) are sent with their current value: the workers do not see later changes", variables))
	}
	return g.checkFunctionState()
}

// checkFunctionState checks the tables that functions create.
func (g *Graph) checkFunctionState() error {
	for _, f := range g.def.GetLibrary().GetFunction() {
		filled := filledTables(f)
		for _, n := range f.GetNodeDef() {
			if err := g.checkHandle(f, n); err != nil {
				return err
			}
			if (ops.IsTable(n.GetOp()) && !filled[n.GetName()]) || n.GetOp() == "VarHandleOp" {
				return reason.New(reason.ExternalState, "node %s creates a %s inside a function, without content: create it outside of the dataset's functions and initialise it",
					nodedef.Quote(nodedef.Path(f.GetSignature().GetName(), n)), n.GetOp())
			}
		}
	}
	return nil
}

// filledTables returns the nodes of a function whose table the function fills, or passes to a function that
// may fill it.
func filledTables(f *tf.FunctionDef) map[string]bool {
	from := map[string]string{}
	for _, n := range f.GetNodeDef() {
		if n.GetOp() == "Identity" && len(n.GetInput()) > 0 {
			from[n.GetName()] = nodedef.InputNode(n.GetInput()[0])
		}
	}
	filled := map[string]bool{}
	for _, n := range f.GetNodeDef() {
		if len(n.GetInput()) == 0 || !ops.FillsTable(n.GetOp()) && len(nodedef.CalledFunctions(n)) == 0 {
			continue
		}
		inputs := n.GetInput()
		if ops.FillsTable(n.GetOp()) {
			inputs = inputs[:1]
		}
		for _, input := range inputs {
			if strings.HasPrefix(input, "^") {
				continue
			}
			name := nodedef.InputNode(input)
			for from[name] != "" {
				name = from[name]
			}
			filled[name] = true
		}
	}
	return filled
}

// replaceableHandle reports whether a dataset creates a new object if it does not find the object of its
// handle.
func replaceableHandle(op string) bool {
	for _, family := range []string{"Shuffle", "Cache", "RandomDataset"} {
		if strings.HasPrefix(op, family) {
			return true
		}
	}
	return false
}

// checkHandle refuses functions that contain the name of an object in the trainer's process, or a handle made
// of bytes. On a worker, such a name may refer to an object of another dataset.
func (g *Graph) checkHandle(f *tf.FunctionDef, n *tf.NodeDef) error {
	found := parsesHandle(n)
	if nodedef.Tensor(n).GetDtype() == tf.DataType_DT_RESOURCE {
		for _, user := range f.GetNodeDef() {
			for _, input := range user.GetInput() {
				found = found || (nodedef.InputNode(input) == n.GetName() && !replaceableHandle(user.GetOp()))
			}
		}
	}
	if found {
		return reason.New(reason.ExternalState, "node %s (%s) refers to an object in the trainer's process: remove it from the pipeline, or move the step after distribute()",
			nodedef.Quote(nodedef.Path(f.GetSignature().GetName(), n)), n.GetOp())
	}
	return nil
}

func parsesHandle(n *tf.NodeDef) bool {
	return n.GetOp() == "ParseTensor" && n.GetAttr()["out_type"].GetType() == tf.DataType_DT_RESOURCE
}

// checkChanges finds the variables that functions change, and adds warnings about them.
//
// tf.data writes a variable once for each step that uses it. If a step changes a variable, and another
// variable has the same value, the graph does not show whether they are the same. checkChanges refuses such a
// graph: with separate copies, the second step would not see the changes of the first one.
func (g *Graph) checkChanges() (map[string]bool, error) {
	variables := NewVariables(g)
	changed := map[string]bool{}
	var counters, states []string
	users := map[string]string{}
	for _, n := range g.order {
		switch op := n.GetOp(); {
		case op == "Identity", op == "AssignVariableOp", op == "ReadVariableOp", op == "ResourceGather", op == "ResourceGatherNd", ops.HandleOnlyOps[op]:
			continue
		}
		for _, c := range variables.Captures(n) {
			name := c.Handle.GetName()
			if c.Use.Writes && !g.ops.IsDataset(n.GetOp()) {
				return nil, reason.New(reason.ExternalState, "node %s of the dataset is a %s that may change a variable: %s", nodedef.Quote(n.GetName()), n.GetOp(), textWrites)
			}
			users[name] = n.GetName()
			switch {
			case changed[name] || !c.Use.Writes:
				continue
			case c.Use.IsCounter():
				counters = append(counters, name)
			default:
				states = append(states, name)
			}
			changed[name] = true
		}
	}
	if len(changed) == 0 {
		return changed, nil
	}
	equal := g.equalVariables()
	for _, name := range counters {
		if len(equal[name]) > 1 {
			return nil, reason.New(reason.ExternalState, "a function of the dataset changes a variable (node %s), and the dataset uses another variable with an equal value: "+
				"Pecan cannot tell whether they are the same, and each step would have its own copy. Compute the value from the element, give different variables different values, or move the step after distribute()", nodedef.Quote(name))
		}
	}
	if len(counters) > 0 {
		g.warnings = append(g.warnings, fmt.Sprintf("%d variable(s) are changed by the dataset's functions: every stream changes its own copy, which starts "+
			"in every epoch from the current value, and the trainer does not see the changes", len(counters)))
	}
	if len(states) > 0 {
		g.warnings = append(g.warnings, describeStates(states, equal, users))
	}
	return changed, nil
}

func describeStates(states []string, equal map[string][]string, users map[string]string) string {
	text := fmt.Sprintf("the states of %d random generator(s) are sent by value: every stream of every epoch draws its own numbers", len(states))
	for _, name := range states {
		for _, other := range equal[name] {
			if users[other] != users[name] {
				return text + ". Two steps have generators with equal states and draw the same numbers, even if they share one generator"
			}
		}
	}
	return text
}

// equalVariables groups the variables with equal values. It maps the name of each to the names of its group.
func (g *Graph) equalVariables() map[string][]string {
	groups := map[string][]string{}
	values := map[string]string{}
	for name, assign := range g.Assignments() {
		handle := g.nodes[name]
		value := fmt.Sprint(handle.GetAttr()["dtype"].GetType(), handle.GetAttr()["shape"])
		if t := nodedef.Tensor(g.NodeOf(assign.GetInput()[1])); t != nil {
			value += string(hashTensor(t))
		}
		values[name] = value
		groups[value] = append(groups[value], name)
	}
	equal := make(map[string][]string, len(values))
	for name, value := range values {
		equal[name] = groups[value]
	}
	return equal
}
