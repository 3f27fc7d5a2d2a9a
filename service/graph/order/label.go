package order

import (
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// label returns the author's name for a step: its argument name, or its function's name. tf.data names the
// other steps "MapDataset:3", which is no label.
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

// tracedName matches tf.data's name for a function: the step, the function's name in Python, and a number.
var tracedName = regexp.MustCompile(`^__inference_Dataset_(?:flat_map|[a-z]+)_([A-Za-z_][\w.]*)_\d+$`)

// functionLabel returns the Python name of a step's function; "" without one, and for a lambda. "kept" is the
// function in which pecan.keep_position wraps a lambda.
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
