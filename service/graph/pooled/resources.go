package pooled

import (
	"fmt"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Tables and variables that the steps only read stay outside of the stream's function, which captures their handles. So a
// pooled iterator fills a table once, and not for each stream. Package rewrite names them by their content.

// findResources finds the nodes that make and fill tables and variables, and the handles that the dataset uses.
func (t *Template) findResources() error {
	t.resources, t.handles = map[string]bool{}, map[string]string{}
	for changed := true; changed; {
		changed = false
		for _, n := range t.def.GetNode() {
			if !t.resources[n.GetName()] && t.isResource(n) {
				t.resources[n.GetName()], changed = true, true
			}
		}
	}
	for _, n := range t.def.GetNode() {
		if n.GetOp() == "VarHandleOp" && string(n.GetAttr()["shared_name"].GetS()) == ops.AnonymousVariable {
			return fmt.Errorf("node %s is a variable that steps change", nodedef.Quote(n.GetName()))
		}
		if t.resources[n.GetName()] {
			continue
		}
		for _, input := range n.GetInput() {
			name, index, control := nodedef.SplitInput(input)
			if !t.resources[name] || control || t.handles[name] != "" {
				continue
			}
			from := t.nodes[name]
			isHandle := ops.IsTable(from.GetOp()) || from.GetOp() == "VarHandleOp" ||
				from.GetOp() == "Identity" && from.GetAttr()["T"].GetType() == tf.DataType_DT_RESOURCE
			if !isHandle || index != "" && index != "0" {
				return fmt.Errorf("node %s is a %s outside of functions", nodedef.Quote(name), from.GetOp())
			}
			t.handles[name] = fmt.Sprintf("pecan_resource_%d", len(t.captured))
			t.captured = append(t.captured, name)
		}
	}
	return nil
}

// isResource returns whether a node makes a table or variable, or depends on one without being part of the dataset.
func (t *Template) isResource(n *tf.NodeDef) bool {
	if n.GetOp() == "VarHandleOp" || ops.IsTable(n.GetOp()) {
		return true
	}
	if n.GetOp() == "_Retval" || t.ops.IsDataset(n.GetOp()) {
		return false
	}
	for _, input := range n.GetInput() {
		if name, _, _ := nodedef.SplitInput(input); t.resources[name] {
			return true
		}
	}
	return false
}

// resourceNodes returns the nodes of the tables and variables with all their inputs, in the order of the graph.
func (t *Template) resourceNodes() (nodes []*tf.NodeDef) {
	needed := map[string]bool{}
	var need func(name string)
	need = func(name string) {
		if !needed[name] {
			needed[name] = true
			for _, input := range t.nodes[name].GetInput() {
				from, _, _ := nodedef.SplitInput(input)
				need(from)
			}
		}
	}
	for name := range t.resources {
		need(name)
	}
	for _, n := range t.def.GetNode() {
		if needed[n.GetName()] {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// onlyForResources returns whether only tables and variables use a node.
func (t *Template) onlyForResources(name string) bool {
	if len(t.resources) == 0 {
		return false
	}
	used := false
	for _, n := range t.def.GetNode() {
		for _, input := range n.GetInput() {
			from, _, _ := nodedef.SplitInput(input)
			if from == name && !t.resources[n.GetName()] {
				return false
			}
			used = used || from == name
		}
	}
	return used
}

// withoutResources returns the inputs without control inputs from tables and variables.
func (t *Template) withoutResources(inputs []string) (kept []string) {
	for _, input := range inputs {
		if strings.HasPrefix(input, "^") && t.resources[input[1:]] {
			continue
		}
		kept = append(kept, input)
	}
	return kept
}
