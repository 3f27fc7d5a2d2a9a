package graph

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// checkState refuses what a worker would find empty: tables without their content, variables without their value, and
// handles of objects of the trainer's process. Variables that came along get a notice.
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
			return reason.New(reason.ExternalState, "node %s makes a handle of an object out of bytes: take it out of the pipeline", name)
		case n.GetOp() == "VarHandleOp" && !changed[n.GetName()]:
			variables++
		case nodedef.Tensor(n).GetDtype() == tf.DataType_DT_RESOURCE:
			for _, user := range users[n.GetName()] {
				if handles := nodedef.Tensor(n).GetResourceHandleVal(); len(handles) > 0 && strings.Contains(handles[0].GetMaybeTypeName(), "lookup") {
					return reason.New(reason.ExternalState, "node %s (%s) uses a lookup table that TensorFlow does not serialise (node %s), such as a DenseHashTable: %s", nodedef.Quote(user.GetName()),
						user.GetOp(), name, "give its content to a StaticHashTable or a MutableHashTable, which travel with the dataset, or move the step after distribute()")
				}
				if !replaceableHandle(user.GetOp()) {
					return reason.New(reason.ExternalState, "node %s (%s) uses an object of the trainer's process (node %s): %s",
						nodedef.Quote(user.GetName()), user.GetOp(), name, "take it out of the pipeline, or move the step after distribute()")
				}
			}
		}
	}
	if variables > 0 {
		g.notices = append(g.notices, fmt.Sprintf("%d variable(s) travel by the value they have now: later changes are not seen by the workers", variables))
	}
	return g.checkFunctionState()
}

// checkFunctionState looks at tables that functions make for themselves.
func (g *Graph) checkFunctionState() error {
	for _, f := range g.def.GetLibrary().GetFunction() {
		filled := filledTables(f)
		for _, n := range f.GetNodeDef() {
			if err := g.checkHandle(f, n); err != nil {
				return err
			}
			if (ops.IsTable(n.GetOp()) && !filled[n.GetName()]) || n.GetOp() == "VarHandleOp" {
				return reason.New(reason.ExternalState, "node %s makes a %s inside a function, without content: make it outside of the dataset's functions and initialise it",
					nodedef.Quote(nodedef.Path(f.GetSignature().GetName(), n)), n.GetOp())
			}
		}
	}
	return nil
}

// filledTables are the nodes of a function whose table the function fills, or hands to a function that may.
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

// replaceableHandle tells whether a dataset makes a new object when it does not find the one its handle names.
func replaceableHandle(op string) bool {
	for _, family := range []string{"Shuffle", "Cache", "RandomDataset"} {
		if strings.HasPrefix(op, family) {
			return true
		}
	}
	return false
}

// checkHandle refuses objects of the trainer's process that a function names by itself, and handles made of bytes: what
// they name on a worker may belong to another dataset.
func (g *Graph) checkHandle(f *tf.FunctionDef, n *tf.NodeDef) error {
	made := parsesHandle(n)
	if nodedef.Tensor(n).GetDtype() == tf.DataType_DT_RESOURCE {
		for _, user := range f.GetNodeDef() {
			for _, input := range user.GetInput() {
				made = made || (nodedef.InputNode(input) == n.GetName() && !replaceableHandle(user.GetOp()))
			}
		}
	}
	if made {
		return reason.New(reason.ExternalState, "node %s (%s) names an object of the trainer's process: take it out of the pipeline, or move the step after distribute()",
			nodedef.Quote(nodedef.Path(f.GetSignature().GetName(), n)), n.GetOp())
	}
	return nil
}

func parsesHandle(n *tf.NodeDef) bool {
	return n.GetOp() == "ParseTensor" && n.GetAttr()["out_type"].GetType() == tf.DataType_DT_RESOURCE
}

// checkChanges finds the variables that functions change, and says what becomes of them.
//
// tf.data writes a variable anew for each step that uses it. Where a step changes one, and another of the same value is
// there, nothing tells whether they are one variable: the graph is refused, for with copies of their own the second
// step would not see what the first one does.
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
				return nil, reason.New(reason.ExternalState, "node %s of the dataset is a %s that may change a variable: %s", nodedef.Quote(n.GetName()), n.GetOp(), saysWrites)
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
	twins := g.equalVariables()
	for _, name := range counters {
		if len(twins[name]) > 1 {
			return nil, reason.New(reason.ExternalState, "a function of the dataset changes a variable (node %s), and the dataset uses another of equal value: "+
				"whether they are one cannot be told, and each step would have a copy of its own. Compute the value from the element, give different variables different values, or move the step after distribute()", nodedef.Quote(name))
		}
	}
	if len(counters) > 0 {
		g.notices = append(g.notices, fmt.Sprintf("%d variable(s) are changed by the dataset's functions: every stream changes a copy of its own, which starts "+
			"in every epoch from the value the variable has now, and the trainer does not see the changes", len(counters)))
	}
	if len(states) > 0 {
		g.notices = append(g.notices, describeStates(states, twins, users))
	}
	return changed, nil
}

func describeStates(states []string, twins map[string][]string, users map[string]string) string {
	text := fmt.Sprintf("the states of %d random generator(s) travel by value: every stream of every epoch draws numbers of its own", len(states))
	for _, name := range states {
		for _, other := range twins[name] {
			if users[other] != users[name] {
				return text + ". Two steps have generators of equal state and draw the same numbers, also where one generator serves both"
			}
		}
	}
	return text
}

// equalVariables groups the variables that travel with equal values: all of a group, by the name of each.
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
	twins := make(map[string][]string, len(values))
	for name, value := range values {
		twins[name] = groups[value]
	}
	return twins
}
