package dataset

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/proto/tensorflow"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Node is the part of a node that is read without decoding all of it, because constants can make a graph large.
type Node struct {
	Name, Op string
	Inputs   []string
	raw      []byte
}

// OutputTypes returns the dtypes of the elements of a serialised dataset graph. It decodes only the output node.
func OutputTypes(serialised []byte) ([]tf.DataType, error) {
	output, err := OutputNode(serialised)
	if err != nil {
		return nil, err
	}
	var types []tf.DataType
	err = EachNode(serialised, func(n Node) bool {
		if n.Name != output {
			return true
		}
		node := new(tensorflow.NodeDef)
		if err := proto.Unmarshal(n.raw, node); err == nil {
			types = datasetTypes(node)
		}
		return false
	})
	if err == nil && len(types) == 0 {
		err = reason.New(reason.GraphStructure, "the dataset's output %q does not state its dtypes", output)
	}
	return types, err
}

// OutputNode returns the name of the node that is the graph's output.
func OutputNode(serialised []byte) (output string, err error) {
	err = EachNode(serialised, func(n Node) bool {
		if n.Op == "_Retval" && len(n.Inputs) > 0 {
			output = NodeOf(n.Inputs[0])
			return false
		}
		return true
	})
	return output, err
}

// NodeOf returns the name of the node in an input such as "node:0".
func NodeOf(input string) string {
	name, _, _ := strings.Cut(input, ":")
	return name
}

// ElementBytes is the size of an element of a dataset node; 0 if the node does not state it.
func (n Node) ElementBytes() (sum uint64) {
	node := new(tensorflow.NodeDef)
	if proto.Unmarshal(n.raw, node) != nil {
		return 0
	}
	types, shapes := datasetTypes(node), node.GetAttr()["output_shapes"].GetList().GetShape()
	for i, dtype := range types {
		size := uint64(frame.Width(uint32(dtype)))
		if i >= len(shapes) || shapes[i].GetUnknownRank() || size == 0 {
			return 0
		}
		for _, dim := range shapes[i].GetDim() {
			if dim.GetSize() < 0 || dim.GetSize() > 1<<40 || size > 1<<40 {
				return 0
			}
			size *= uint64(dim.GetSize())
		}
		sum += size
	}
	return sum
}

func datasetTypes(node *tensorflow.NodeDef) []tf.DataType {
	for _, attr := range []string{"output_types", "Toutput_types"} {
		if list := node.GetAttr()[attr].GetList().GetType(); len(list) > 0 {
			types := make([]tf.DataType, len(list))
			for i, t := range list {
				types[i] = tf.DataType(t)
			}
			return types
		}
	}
	switch node.GetOp() {
	case "TFRecordDataset", "TFRecordDatasetV2", "TextLineDataset", "FixedLengthRecordDataset", "FixedLengthRecordDatasetV2":
		return []tf.DataType{tf.String}
	case "SparseTensorSliceDataset":
		return []tf.DataType{tf.Variant}
	}
	return nil
}

// These are field numbers of GraphDef, NodeDef, FunctionDefLibrary, FunctionDef and OpDef.
const (
	fieldNode      = 1
	fieldLibrary   = 2
	fieldName      = 1
	fieldOp        = 2
	fieldInput     = 3
	fieldFunction  = 1
	fieldSignature = 1
)

// EachNode calls visit for the nodes of a serialised GraphDef until it returns false.
func EachNode(serialised []byte, visit func(Node) bool) error {
	more := true
	return EachField(serialised, func(number protowire.Number, value []byte) error {
		if number != fieldNode || !more {
			return nil
		}
		node := Node{raw: value}
		err := EachField(value, func(number protowire.Number, value []byte) error {
			switch number {
			case fieldName:
				node.Name = string(value)
			case fieldOp:
				node.Op = string(value)
			case fieldInput:
				node.Inputs = append(node.Inputs, string(value))
			}
			return nil
		})
		if err == nil {
			more = visit(node)
		}
		return err
	})
}

// Function decodes a function of a serialised GraphDef; nil if there is none with that name.
func Function(serialised []byte, name string) *tensorflow.FunctionDef {
	var found *tensorflow.FunctionDef
	_ = EachField(serialised, func(number protowire.Number, library []byte) error {
		if number != fieldLibrary {
			return nil
		}
		return EachField(library, func(number protowire.Number, function []byte) error {
			if number != fieldFunction || !isNamed(function, name) {
				return nil
			}
			found = new(tensorflow.FunctionDef)
			return proto.Unmarshal(function, found)
		})
	})
	return found
}

// isNamed reports whether a serialised FunctionDef has a name.
func isNamed(function []byte, name string) (is bool) {
	_ = EachField(function, func(number protowire.Number, signature []byte) error {
		if number != fieldSignature {
			return nil
		}
		return EachField(signature, func(number protowire.Number, value []byte) error {
			is = is || number == fieldName && string(value) == name
			return nil
		})
	})
	return is
}

// CalledFunction is the name of the function in the attribute f of a node; "" without one.
func (n Node) CalledFunction() string {
	node := new(tensorflow.NodeDef)
	if proto.Unmarshal(n.raw, node) != nil {
		return ""
	}
	return node.GetAttr()["f"].GetFunc().GetName()
}

// EachField calls visit for the length-delimited fields of a message.
func EachField(message []byte, visit func(number protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("read graph: %w", protowire.ParseError(n))
		}
		message = message[n:]
		if kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return fmt.Errorf("read graph: %w", protowire.ParseError(n))
			}
			if err := visit(number, value); err != nil {
				return err
			}
			message = message[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return fmt.Errorf("read graph: %w", protowire.ParseError(n))
		}
		message = message[n:]
	}
	return nil
}
