package worker

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/proto/tensorflow"
)

// outputTypes reads from a serialised dataset graph which dtypes its elements have. Only the one node that says it is
// decoded: constants can make the rest large.
func outputTypes(serialised []byte) ([]tf.DataType, error) {
	var output string
	err := eachNode(serialised, func(name, op, input string, raw []byte) bool {
		if op == "_Retval" {
			output = input
		}
		return op != "_Retval"
	})
	if err != nil {
		return nil, err
	}
	var types []tf.DataType
	err = eachNode(serialised, func(name, op, input string, raw []byte) bool {
		if name != nodeOf(output) {
			return true
		}
		node := new(tensorflow.NodeDef)
		if err := proto.Unmarshal(raw, node); err == nil {
			types = datasetTypes(node)
		}
		return false
	})
	if err == nil && len(types) == 0 {
		err = reason.New(reason.GraphStructure, "the dataset's output %q does not say which dtypes it has", output)
	}
	return types, err
}

func nodeOf(input string) string {
	for i := range len(input) {
		if input[i] == ':' {
			return input[:i]
		}
	}
	return input
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

// eachNode calls visit for the nodes of a serialised GraphDef until it gives false.
func eachNode(serialised []byte, visit func(name, op, input string, raw []byte) bool) error {
	for len(serialised) > 0 {
		number, kind, n := protowire.ConsumeTag(serialised)
		if n < 0 {
			return fmt.Errorf("read graph: %w", protowire.ParseError(n))
		}
		serialised = serialised[n:]
		if number != 1 || kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, serialised); n < 0 {
				return fmt.Errorf("read graph: %w", protowire.ParseError(n))
			}
			serialised = serialised[n:]
			continue
		}
		raw, n := protowire.ConsumeBytes(serialised)
		if n < 0 {
			return fmt.Errorf("read graph: %w", protowire.ParseError(n))
		}
		serialised = serialised[n:]
		var first [4]string
		for rest := raw; len(rest) > 0; {
			number, kind, n := protowire.ConsumeTag(rest)
			if n < 0 {
				return fmt.Errorf("read graph node: %w", protowire.ParseError(n))
			}
			rest = rest[n:]
			if number <= 3 && kind == protowire.BytesType {
				text, n := protowire.ConsumeString(rest)
				if n >= 0 && first[number] == "" {
					first[number] = text
				}
			}
			if n = protowire.ConsumeFieldValue(number, kind, rest); n < 0 {
				return fmt.Errorf("read graph node: %w", protowire.ParseError(n))
			}
			rest = rest[n:]
		}
		if !visit(first[1], first[2], first[3], raw) {
			return nil
		}
	}
	return nil
}
