package graph

import (
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// This file finds what the author of a pipeline keeps where it is: steps whose function went through pecan.keep_position(), which has a
// node in its body that begins with HoldMark, and steps between the two that pecan.keep_position_of() puts around them.

// HoldMark is the scope of that node's name, and how the names of the two steps begin.
const HoldMark = "pecan_keep_position"

const (
	// holdBegin is the name of the step below those that stay, holdEnd of the one above.
	holdBegin, holdEnd = HoldMark + "_begin", HoldMark + "_end"
	// holdScope begins the names of the nodes in functions.
	holdScope = HoldMark + "/"
	// authorHolds is what is said of steps that stay for this.
	authorHolds = "its author keeps it where it is"
)

// markOf is the name of a step that a user's name makes a mark: take(-1) passes everything on and is there for its name alone; a name of
// the user's on a step lies in its metadata. Empty for other nodes.
func (g *Graph) markOf(n *tf.NodeDef) string {
	if n.GetOp() != "TakeDataset" || len(n.GetAttr()["metadata"].GetS()) == 0 {
		return ""
	}
	if count, ok := g.inputInt(n, "count"); !ok || count >= 0 {
		return ""
	}
	var metadata tf.Metadata
	if proto.Unmarshal(n.GetAttr()["metadata"].GetS(), &metadata) != nil {
		return ""
	}
	switch name := string(metadata.GetName()); name {
	case CacheMark, holdBegin, holdEnd:
		return name
	}
	return ""
}

// isHeld tells whether a function itself has the mark.
func isHeld(f *tf.FunctionDef) bool {
	for _, n := range f.GetNodeDef() {
		if strings.HasPrefix(n.GetName(), holdScope) {
			return true
		}
	}
	return false
}

// heldFunctions finds the functions that have the mark, or call one that has.
func (g *Graph) heldFunctions() map[string]bool {
	held := map[string]bool{}
	for name, f := range g.functions {
		if isHeld(f) {
			held[name] = true
		}
	}
	for before := 0; before < len(held); {
		before = len(held)
		for name, f := range g.functions {
			for _, n := range f.GetNodeDef() {
				if callsAny(n, held) {
					held[name] = true
				}
			}
		}
	}
	return held
}

func callsAny(n *tf.NodeDef, functions map[string]bool) bool {
	for _, called := range calledFunctions(n) {
		if functions[called] {
			return true
		}
	}
	return false
}

// held finds the steps from a root on that their author keeps where they are, the marks around them among them.
func (g *Graph) held(root *step) map[*step]bool {
	functions := g.heldFunctions()
	held := map[*step]bool{}
	within := 0
	for s := root; ; s = s.in[0] {
		mark := g.markOf(s.node)
		if mark == holdEnd {
			within++
		}
		if within > 0 || mark == holdBegin || callsAny(s.node, functions) {
			held[s] = true
		}
		if mark == holdBegin {
			within = max(0, within-1)
		}
		if len(s.in) != 1 {
			return held
		}
	}
}
