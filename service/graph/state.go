package graph

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// isTable tells whether an op makes a lookup table, which is empty until something fills it.
func isTable(op string) bool { return strings.Contains(op, "HashTable") }

func fillsTable(op string) bool {
	return op == "LookupTableImportV2" || strings.HasPrefix(op, "InitializeTable")
}

// checkState refuses what a worker would find empty: tables without their content, variables without their value, and
// handles of objects of the trainer's process. Variables that came along get a notice.
func (g *Graph) checkState() error {
	filled := map[string]bool{}
	users := map[string][]*tf.NodeDef{}
	for _, n := range g.def.Node {
		for i, input := range n.GetInput() {
			name, _, control := splitInput(input)
			if control {
				continue
			}
			users[name] = append(users[name], n)
			if i == 0 && (fillsTable(n.GetOp()) || n.GetOp() == "AssignVariableOp") {
				filled[name] = true
			}
		}
	}
	variables := 0
	for _, n := range g.order {
		name := quoteName(n.GetName())
		switch {
		case isTable(n.GetOp()) && !filled[n.GetName()]:
			return reason.New(reason.ExternalState, "node %s is a lookup table without content: initialise it before the dataset uses it, or move the step after distribute()", name)
		case n.GetOp() == "VarHandleOp" && !filled[n.GetName()]:
			return reason.New(reason.ExternalState, "node %s is a variable without a value: initialise it before the dataset uses it, or move the step after distribute()", name)
		case n.GetOp() == "VarHandleOp":
			variables++
		case constTensor(n).GetDtype() == tf.DataType_DT_RESOURCE:
			for _, user := range users[n.GetName()] {
				if !replaceableHandle(user.GetOp()) {
					return reason.New(reason.ExternalState, "node %s (%s) uses an object of the trainer's process (node %s): %s",
						quoteName(user.GetName()), user.GetOp(), name, "take it out of the pipeline, or move the step after distribute()")
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
		fills := false
		for _, n := range f.GetNodeDef() {
			fills = fills || fillsTable(n.GetOp())
		}
		for _, n := range f.GetNodeDef() {
			if (isTable(n.GetOp()) && !fills) || n.GetOp() == "VarHandleOp" {
				return reason.New(reason.ExternalState, "node %s makes a %s inside a function, without content: make it outside of the dataset's functions and initialise it",
					quoteName(nodePath(f.GetSignature().GetName(), n)), n.GetOp())
			}
		}
	}
	return nil
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
