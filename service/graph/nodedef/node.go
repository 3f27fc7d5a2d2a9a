package nodedef

import (
	"fmt"
	"strconv"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Copy copies a node. The values of its attributes are shared.
func Copy(n *tf.NodeDef) *tf.NodeDef {
	c := &tf.NodeDef{Name: n.GetName(), Op: n.GetOp(), Device: n.GetDevice()}
	c.Input = append([]string(nil), n.GetInput()...)
	c.Attr = make(map[string]*tf.AttrValue, len(n.GetAttr())+1)
	for k, v := range n.GetAttr() {
		c.Attr[k] = v
	}
	return c
}

// InputNode is the node or argument that an input inside a function names.
func InputNode(input string) string {
	input = strings.TrimPrefix(input, "^")
	name, _, _ := strings.Cut(input, ":")
	return name
}

// Identity is an Identity node inside a function.
func Identity(name, input string, t tf.DataType) *tf.NodeDef {
	return &tf.NodeDef{Name: name, Op: "Identity", Input: []string{input}, Attr: map[string]*tf.AttrValue{"T": TypeAttr(t)}}
}

// Pack is a node inside a function that packs scalars into a vector.
func Pack(name string, t tf.DataType, inputs ...string) *tf.NodeDef {
	return &tf.NodeDef{Name: name, Op: "Pack", Input: inputs, Attr: map[string]*tf.AttrValue{"N": IntAttr(int64(len(inputs))), "T": TypeAttr(t), "axis": IntAttr(0)}}
}

// InsertInput adds an input behind the others and before those that only wait.
func InsertInput(inputs []string, input string) []string {
	at := len(inputs)
	for at > 0 && strings.HasPrefix(inputs[at-1], "^") {
		at--
	}
	return append(append(append([]string(nil), inputs[:at]...), input), inputs[at:]...)
}

// SplitInput takes a top-level input apart: node, output index, and whether it is only an order.
func SplitInput(input string) (node string, index string, control bool) {
	if strings.HasPrefix(input, "^") {
		return input[1:], "", true
	}
	node, index, _ = strings.Cut(input, ":")
	return node, index, false
}

// OutputIndex is which result of a node an input inside a function names, where all results have one list ("node:output:2"); -1 where the
// name has no number.
func OutputIndex(input string) int {
	parts := strings.Split(input, ":")
	index, err := strconv.Atoi(parts[len(parts)-1])
	if err != nil {
		return -1
	}
	return index
}

// DataInputCount is the number of inputs that are no control inputs.
func DataInputCount(n *tf.NodeDef) (count int) {
	for _, input := range n.GetInput() {
		if !strings.HasPrefix(input, "^") {
			count++
		}
	}
	return count
}

// Path names a node of a function, or of the graph if function is empty.
func Path(function string, n *tf.NodeDef) string {
	if function == "" {
		return n.GetName()
	}
	return function + "/" + n.GetName()
}

// Quote keeps names from hostile graphs harmless in logs and messages.
func Quote(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return fmt.Sprintf("%q", s)
}
