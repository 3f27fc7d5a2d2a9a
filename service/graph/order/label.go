package order

import (
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// label is the name that a step's author gave to it, or to its function. TensorFlow gives steps without one their kind and a number.
func label(n *tf.NodeDef) string {
	var metadata tf.Metadata
	if proto.Unmarshal(n.GetAttr()["metadata"].GetS(), &metadata) != nil {
		return ""
	}
	name := string(metadata.GetName())
	if kind, _, numbered := strings.Cut(name, ":"); name == "" || numbered && strings.Contains(kind, "Dataset") {
		return functionLabel(n)
	}
	return name
}

// tracedName is how tf.data names a function: by the step, by what the function is called in Python, and with a number.
var tracedName = regexp.MustCompile(`^__inference_Dataset_(?:flat_map|[a-z]+)_([A-Za-z_][\w.]*)_\d+$`)

// functionLabel is the name of a step's function; empty where it has none, or one that says nothing.
func functionLabel(n *tf.NodeDef) string {
	called := nodedef.CalledFunctions(n)
	if len(called) != 1 {
		return ""
	}
	traced := tracedName.FindStringSubmatch(called[0])
	if traced == nil || traced[1] == "lambda" || traced[1] == "kept" || strings.HasPrefix(traced[1], "class") {
		return ""
	}
	return traced[1]
}
