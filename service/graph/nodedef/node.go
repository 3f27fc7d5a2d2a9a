package nodedef

import (
	"fmt"
	"strconv"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Copy copies a node. The copy shares the values of the attributes.
func Copy(n *tf.NodeDef) *tf.NodeDef {
	c := &tf.NodeDef{Name: n.GetName(), Op: n.GetOp(), Device: n.GetDevice()}
	c.Input = append([]string(nil), n.GetInput()...)
	c.Attr = make(map[string]*tf.AttrValue, len(n.GetAttr())+1)
	for k, v := range n.GetAttr() {
		c.Attr[k] = v
	}
	return c
}

// InputNode returns the name of the node or argument that an input inside a function refers to.
func InputNode(input string) string {
	input = strings.TrimPrefix(input, "^")
	name, _, _ := strings.Cut(input, ":")
	return name
}

// Identity returns an Identity node for use inside a function.
func Identity(name, input string, t tf.DataType) *tf.NodeDef {
	return &tf.NodeDef{Name: name, Op: "Identity", Input: []string{input}, Attr: map[string]*tf.AttrValue{"T": TypeAttr(t)}}
}

// Pack returns a node that packs scalars into a vector, for use inside a function.
func Pack(name string, t tf.DataType, inputs ...string) *tf.NodeDef {
	return &tf.NodeDef{Name: name, Op: "Pack", Input: inputs, Attr: map[string]*tf.AttrValue{"N": IntAttr(int64(len(inputs))), "T": TypeAttr(t), "axis": IntAttr(0)}}
}

// InsertInput adds a data input after the other data inputs and before the control inputs.
func InsertInput(inputs []string, input string) []string {
	at := len(inputs)
	for at > 0 && strings.HasPrefix(inputs[at-1], "^") {
		at--
	}
	return append(append(append([]string(nil), inputs[:at]...), input), inputs[at:]...)
}

// SplitInput parses a top-level input: its node, its output index, and whether it is a control input.
func SplitInput(input string) (node string, index string, control bool) {
	if strings.HasPrefix(input, "^") {
		return input[1:], "", true
	}
	node, index, _ = strings.Cut(input, ":")
	return node, index, false
}

// TopLevelInput rewrites an input from its form in a function to its form outside. For example, "node:output:1" becomes
// "node:3" if first returns 2, the number of the output's first result. TopLevelInput returns "" if first returns -1.
func TopLevelInput(input string, first func(node, output string) int) string {
	parts, at := strings.Split(input, ":"), 0
	if len(parts) > 1 {
		at = OutputIndex(input)
	}
	if len(parts) > 2 {
		from := first(parts[0], parts[1])
		if from < 0 {
			return ""
		}
		at += from
	}
	if at == 0 {
		return parts[0]
	}
	return fmt.Sprintf("%s:%d", parts[0], at)
}

// OutputIndex returns the last number of an input inside a function ("node:output:2"), -1 if it has none.
// This number identifies the result where all results of the node are in one list.
func OutputIndex(input string) int {
	parts := strings.Split(input, ":")
	index, err := strconv.Atoi(parts[len(parts)-1])
	if err != nil {
		return -1
	}
	return index
}

// DataInputCount is the number of inputs that are not control inputs.
func DataInputCount(n *tf.NodeDef) (count int) {
	for _, input := range n.GetInput() {
		if !strings.HasPrefix(input, "^") {
			count++
		}
	}
	return count
}

// Path returns the name of a node for messages, with the function that contains it. function is "" for a node
// of the graph.
func Path(function string, n *tf.NodeDef) string {
	if function == "" {
		return n.GetName()
	}
	return function + "/" + n.GetName()
}

// Quote quotes and shortens a name, because names in hostile graphs may contain anything. Use it in logs and
// messages.
func Quote(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return fmt.Sprintf("%q", s)
}
