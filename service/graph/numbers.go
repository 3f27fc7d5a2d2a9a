package graph

import (
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Stream graphs lower larger buffers and higher parallelism to these values. That changes only memory, and no
// element.
const (
	MaxParallelism = 1024
	MaxPrefetch    = 1 << 16
	// TensorFlow allocates a whole shuffle buffer at once, about 24 bytes for each element.
	MaxShuffleBuffer = int64(1) << 24
	maxShuffle       = int64(1) << 40
)

// checkNumbers refuses numbers that TensorFlow would not check: sizes of constants, of batches and windows,
// and parallelism.
func (g *Graph) checkNumbers() error {
	err := g.EachNode(func(n *tf.NodeDef, function string) error {
		for key, v := range n.GetAttr() {
			if err := g.checkAttrNumbers(n, function, key, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, n := range g.def.Node {
		if err := g.checkSteps(n, n.GetName(), func(input string) *tf.NodeDef {
			name, _, _ := nodedef.SplitInput(input)
			return g.nodes[name]
		}); err != nil {
			return err
		}
	}
	for _, f := range g.def.GetLibrary().GetFunction() {
		inside := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			inside[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			if err := g.checkSteps(n, nodedef.Path(f.GetSignature().GetName(), n), func(input string) *tf.NodeDef {
				return inside[nodedef.InputNode(input)]
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *Graph) checkAttrNumbers(n *tf.NodeDef, function, key string, v *tf.AttrValue) error {
	path := nodedef.Quote(nodedef.Path(function, n))
	tensors := v.GetList().GetTensor()
	if t := v.GetTensor(); t != nil {
		tensors = append(tensors[:len(tensors):len(tensors)], t)
	}
	for _, t := range tensors {
		if err := g.checkTensor(path, t); err != nil {
			return err
		}
	}
	if strings.HasPrefix(key, "_") {
		return nil
	}
	shapes := v.GetList().GetShape()
	if s := v.GetShape(); s != nil {
		shapes = append(shapes[:len(shapes):len(shapes)], s)
	}
	for _, s := range shapes {
		if len(s.GetDim()) > 254 {
			return reason.New(reason.GraphLimit, "node %s has a shape of %d dimensions, and the limit is 254", path, len(s.GetDim()))
		}
		for _, d := range s.GetDim() {
			if d.GetSize() < -1 {
				return reason.New(reason.GraphLimit, "node %s has a shape with the size %d: sizes are at least 0, or -1 for unknown", path, d.GetSize())
			}
		}
	}
	return nil
}

// checkTensor refuses a constant whose values take too much memory, or do not fit its shape.
func (g *Graph) checkTensor(path string, t *tf.TensorProto) error {
	count, ok := nodedef.ElementCount(t.GetTensorShape())
	if !ok || len(t.GetTensorShape().GetDim()) > 254 {
		return reason.New(reason.GraphLimit, "node %s has a constant whose shape is unknown, negative or too large to count", path)
	}
	width := nodedef.DtypeSize(t.GetDtype())
	cost := max(width, 1)
	switch t.GetDtype() {
	case tf.DataType_DT_STRING, tf.DataType_DT_RESOURCE, tf.DataType_DT_VARIANT:
		cost = 32
	}
	if count > g.limits.MaxTensorBytes/cost {
		return reason.New(reason.GraphLimit, "node %s has a constant of %d values (%s), which takes more than the limit of %d bytes: compute it inside the pipeline, or store it in a file",
			path, count, t.GetDtype(), g.limits.MaxTensorBytes)
	}
	content := int64(len(t.GetTensorContent()))
	switch {
	case content > 0 && width > 0 && content != count*width:
		return reason.New(reason.GraphStructure, "node %s has a constant of %d values (%s) in %d bytes, but the values need %d", path, count, t.GetDtype(), content, count*width)
	// TensorFlow writes one value to fill a constant even if the constant's shape has no elements.
	case int64(nodedef.ValueCount(t)) > max(count, 1):
		return reason.New(reason.GraphStructure, "node %s has a constant of %d values that lists %d", path, count, nodedef.ValueCount(t))
	case content > 0 && t.GetDtype() == tf.DataType_DT_STRING:
		if _, ok := nodedef.UnpackStrings(t.GetTensorContent(), count); !ok {
			return reason.New(reason.GraphStructure, "node %s has %d strings whose lengths do not match their bytes", path, count)
		}
	}
	return nil
}

// bound is the allowed range of a step's number. special is one more allowed value, with its own meaning.
type bound struct {
	low, high int64
	special   int64
}

// bounds returns the allowed range of an argument of a dataset op; false if the argument has no bound.
func (g *Graph) bounds(op, arg string) (bound, bool) {
	const huge = int64(1)<<62 - 1
	switch arg {
	case "batch_size", "batch_sizes":
		return bound{1, g.limits.MaxBatch, 1}, true
	case "padded_shapes":
		return bound{0, maxRow, -1}, true
	case "size", "shift", "stride":
		if op == "WindowDataset" {
			return bound{1, huge, 1}, true
		}
	case "window_size", "window_shift", "window_stride":
		return bound{1, huge, 1}, true
	case "buffer_size":
		switch {
		case strings.HasPrefix(op, "Shuffle"):
			return bound{1, maxShuffle, -2}, true
		case op == "PrefetchDataset":
			return bound{0, huge, -1}, true
		case strings.HasSuffix(op, "LineDataset"), strings.Contains(op, "Record"):
			return bound{0, 1 << 32, -1}, true
		}
	case "num_parallel_calls":
		return bound{1, 1 << 20, -1}, true
	case "cycle_length":
		return bound{1, 1 << 14, -1}, true
	case "block_length":
		return bound{1, huge, 1}, true
	case "buffer_output_elements", "prefetch_input_elements":
		return bound{0, 1 << 31, -1}, true
	}
	return bound{}, false
}

// maxRow is the largest number of values in a padded row, because an element has at most 2 GiB. TensorFlow
// does not check whether it got the memory for a padded batch, and the worker crashes if it did not.
const maxRow = 1 << 31

// product counts the values of a padded shape. An unknown dimension is -1, and a dimension of 0 counts as 1.
func product(dims []int64) int64 {
	count := int64(1)
	for _, d := range dims {
		if d > maxRow/count {
			return maxRow + 1
		}
		if d > 0 {
			count *= d
		}
	}
	return count
}

// checkSteps checks the constant numbers that a dataset op takes as inputs.
func (g *Graph) checkSteps(n *tf.NodeDef, path string, source func(string) *tf.NodeDef) error {
	if !g.ops.IsDataset(n.GetOp()) {
		return nil
	}
	at := 0
	for _, arg := range g.ops.Def(n.GetOp()).GetInputArg() {
		size, ok := g.ArgSize(arg, n)
		if !ok {
			return nil
		}
		limit, bounded := g.bounds(n.GetOp(), arg.GetName())
		for i := at; bounded && i < at+size && i < len(n.GetInput()); i++ {
			values, ok := nodedef.Ints(source(n.GetInput()[i]))
			if count := product(values); ok && arg.GetName() == "padded_shapes" && count > maxRow {
				return reason.New(reason.GraphLimit, "node %s is a %s that pads rows to more than %d values (padded_shapes %v), which is too large for an element",
					nodedef.Quote(path), n.GetOp(), int64(maxRow), values)
			}
			for _, v := range values {
				if ok && v != limit.special && (v < limit.low || v > limit.high) {
					return reason.New(reason.GraphLimit, "node %s is a %s whose %s is %d: it must be from %d to %d", nodedef.Quote(path), n.GetOp(), arg.GetName(), v, limit.low, limit.high)
				}
			}
		}
		at += size
	}
	return nil
}
