package graph

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// ComponentSpec is one tensor of an element.
type ComponentSpec = pecanv1.ComponentSpec

// OutputTypes are the component types of a dataset node. Readers have no such attribute, and give one string.
func (g *Graph) OutputTypes(n *tf.NodeDef) []tf.DataType {
	for _, key := range []string{"output_types", "Toutput_types", "Tinput_types"} {
		if v, ok := n.GetAttr()[key]; ok {
			return v.GetList().GetType()
		}
	}
	if v, ok := n.GetAttr()["Tvalues"]; ok && n.GetOp() == "SparseTensorSliceDataset" {
		return []tf.DataType{tf.DataType_DT_INT64, v.GetType(), tf.DataType_DT_INT64}
	}
	return []tf.DataType{tf.DataType_DT_STRING}
}

// OutputShapes are the component shapes of a dataset node.
func (g *Graph) OutputShapes(n *tf.NodeDef) []*tf.TensorShapeProto {
	if v, ok := n.GetAttr()["output_shapes"]; ok {
		return v.GetList().GetShape()
	}
	if n.GetOp() == "SparseTensorSliceDataset" {
		unknown := &tf.TensorShapeProto{UnknownRank: true}
		return []*tf.TensorShapeProto{unknown, unknown, unknown}
	}
	return []*tf.TensorShapeProto{nodedef.Shape()}
}

// Outputs are the components of an element, as far as the graph contains them.
func (g *Graph) Outputs() []*ComponentSpec { return g.Components(g.root) }

// Components are the components of the elements of a dataset node.
func (g *Graph) Components(n *tf.NodeDef) []*ComponentSpec {
	types, shapes := g.OutputTypes(n), g.OutputShapes(n)
	specs := make([]*ComponentSpec, len(types))
	for i, t := range types {
		spec := &ComponentSpec{Dtype: int32(t), UnknownRank: true}
		if i < len(shapes) && !shapes[i].GetUnknownRank() {
			spec.UnknownRank = false
			for _, d := range shapes[i].GetDim() {
				spec.Dims = append(spec.Dims, d.GetSize())
			}
		}
		specs[i] = spec
	}
	return specs
}

// checkOutputs refuses elements that are not plain tensors. The trainer takes composite tensors apart before
// it registers a dataset.
func (g *Graph) checkOutputs() error {
	for i, spec := range g.Outputs() {
		switch t := tf.DataType(spec.GetDtype()); t {
		case tf.DataType_DT_VARIANT, tf.DataType_DT_RESOURCE, tf.DataType_DT_INVALID:
			return reason.New(reason.Unsupported,
				"component %d of the dataset's elements is a %s (node %s): datasets and other objects cannot be elements; unpack them with flat_map or map before distribute()",
				i, strings.TrimPrefix(t.String(), "DT_"), nodedef.Quote(g.root.GetName()))
		}
	}
	return nil
}

// CheckSpec compares the trainer's element spec with the graph's, component by component.
func CheckSpec(g *Graph, want []*ComponentSpec) error { return CompareSpecs(want, g.Outputs()) }

// CompareSpecs compares a caller's element spec with the known one.
func CompareSpecs(want, have []*ComponentSpec) error {
	if len(have) != len(want) {
		return reason.New(reason.SpecMismatch, "the element spec has %d components, but the dataset gives %d: pass the dataset's own element_spec", len(want), len(have))
	}
	var wrong []string
	for i := range have {
		if text := specConflict(want[i], have[i]); text != "" {
			wrong = append(wrong, fmt.Sprintf("component %d %s", i, text))
		}
	}
	if len(wrong) > 0 {
		return reason.New(reason.SpecMismatch, "the element spec does not match the dataset: %s. Pass the dataset's own element_spec", strings.Join(wrong, "; "))
	}
	return nil
}

// specConflict compares one component and returns the difference, "" if there is none. Either side may know
// less than the other. Some ops have no shape in the graph, and TensorFlow's Python does not know that all
// batches of an endless dataset are full.
func specConflict(want, have *ComponentSpec) string {
	switch {
	case tf.DataType(want.GetDtype()) == tf.DataType_DT_VARIANT || tf.DataType(want.GetDtype()) == tf.DataType_DT_RESOURCE:
		return "is not a plain tensor"
	case want.GetDtype() != have.GetDtype():
		return fmt.Sprintf("is %s, but the dataset gives %s", frame.DTypeName(uint32(want.GetDtype())), frame.DTypeName(uint32(have.GetDtype())))
	case have.GetUnknownRank() || want.GetUnknownRank():
		return ""
	case len(want.GetDims()) != len(have.GetDims()):
		return fmt.Sprintf("has rank %d, but the dataset gives rank %d", len(want.GetDims()), len(have.GetDims()))
	}
	for i, w := range want.GetDims() {
		if h := have.GetDims()[i]; w < -1 || (h >= 0 && w >= 0 && w != h) {
			return fmt.Sprintf("has size %d in dimension %d, but the dataset gives %d", w, i, h)
		}
	}
	return ""
}
