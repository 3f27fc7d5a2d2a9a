package order

import (
	"fmt"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// sameOutputShapes compares the shapes at the end of a section with those in the original order.
func sameOutputShapes(shapes, stated []*tf.TensorShapeProto) error {
	for c := range min(len(shapes), len(stated)) {
		if shapesConflict(shapes[c], stated[c]) {
			return fmt.Errorf("after it, component %d would have shape %s, not %s as in the registered order", c, shapeText(shapes[c]), shapeText(stated[c]))
		}
	}
	return nil
}

// shapesConflict returns whether no tensor can have both shapes. Example: two crops to different sizes that
// swapped.
func shapesConflict(a, b *tf.TensorShapeProto) bool {
	if a.GetUnknownRank() || b.GetUnknownRank() {
		return false
	}
	differ := func(x, y *tf.TensorShapeProto_Dim) bool {
		return x.GetSize() >= 0 && y.GetSize() >= 0 && x.GetSize() != y.GetSize()
	}
	for i, d := range a.GetDim() {
		if i < len(b.GetDim()) && differ(d, b.GetDim()[i]) {
			return true
		}
	}
	return len(a.GetDim()) != len(b.GetDim())
}

// sameOnShapes returns whether a map has the same effect on a component of another shape than it was traced for.
// batches is the number of batches that the map moved past; it is negative if the map moved upstream.
func sameOnShapes(g *graph.Graph, function string, component int, shape, traced *tf.TensorShapeProto, batches int) bool {
	change, there := dataflow.ChangeOf(g, function, component, traced), dataflow.ChangeOf(g, function, component, shape)
	switch {
	case batches > 0 && len(shape.GetDim()) >= batches:
		rows := &tf.TensorShapeProto{Dim: shape.GetDim()[batches:]}
		return dataflow.SameInBatches(change, there, batches) && !sizesDiffer(rows, traced, change.DependsOnSize)
	case batches < 0 && len(traced.GetDim()) >= -batches:
		rows := &tf.TensorShapeProto{Dim: traced.GetDim()[-batches:]}
		return dataflow.SameInBatches(there, change, -batches) && !sizesDiffer(shape, rows, there.DependsOnSize)
	case batches != 0:
		return false
	}
	return change.Opaque == "" && there.Opaque == "" && !sizesDiffer(shape, traced, change.DependsOnSize)
}

// shapeAfter returns the shape of a component downstream of a map.
func (r *reordering) shapeAfter(s *graph.Step, function string, deps *dataflow.Dependencies, component int, shapes []*tf.TensorShapeProto) *tf.TensorShapeProto {
	if same := deps.Same[component]; same >= 0 && same < len(shapes) {
		return shapes[same]
	}
	if deps.From[component][component] {
		if change, shape := dataflow.ChangeAndShape(r.g, function, component, shapes[component]); change.Opaque == "" {
			return shape
		}
	}
	return r.g.OutputShapes(s.Node)[component]
}

// withShapes returns a function whose arguments have the given shapes: f itself, or a copy.
func (r *reordering) withShapes(f *tf.FunctionDef, shapes []*tf.TensorShapeProto) *tf.FunctionDef {
	var texts []string
	same := true
	for i, shape := range shapes {
		own := f.GetArgAttr()[uint32(i)].GetAttr()["_output_shapes"].GetList().GetShape()
		same = same && (len(own) != 1 || sameShape(own[0], shape))
		texts = append(texts, shapeText(shape))
	}
	if same {
		return f
	}
	c := nodedef.CopySignature(f)
	c.NodeDef = r.nodesWithoutShapes(f)
	c.Signature = nodedef.RenameSignature(f.GetSignature(), f.GetSignature().GetName()+nodedef.CloneInfix+nodedef.ShortHash(append(texts, "shapes")...))
	c.ArgAttr = map[uint32]*tf.FunctionDef_ArgAttrs{}
	for i, attrs := range f.GetArgAttr() {
		c.ArgAttr[i] = attrs
		if int(i) < len(shapes) {
			c.ArgAttr[i] = &tf.FunctionDef_ArgAttrs{Attr: map[string]*tf.AttrValue{"_output_shapes": nodedef.ShapesAttr(shapes[i : i+1])}}
		}
	}
	r.funcs = append(r.funcs, c)
	return c
}

// nodesWithoutShapes returns the nodes of a function without the shapes of its calls, which hold for the
// original order.
func (r *reordering) nodesWithoutShapes(f *tf.FunctionDef) (nodes []*tf.NodeDef) {
	for _, original := range f.GetNodeDef() {
		called := nodedef.CalledFunctions(original)
		if len(called) == 0 {
			nodes = append(nodes, original)
			continue
		}
		n := nodedef.Copy(original)
		delete(n.Attr, "_output_shapes")
		if shapes := n.Attr["output_shapes"].GetList().GetShape(); len(shapes) > 0 {
			n.Attr["output_shapes"] = nodedef.ShapesAttr(slices.Repeat([]*tf.TensorShapeProto{{UnknownRank: true}}, len(shapes)))
		}
		for _, name := range called {
			nodedef.RenameCalls(n, name, r.withoutShapes(name))
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// withoutShapes returns the name of a copy of a function whose arguments have unknown shapes.
func (r *reordering) withoutShapes(name string) string {
	f := r.g.Function(name)
	if f == nil {
		f = r.types.funcs[name]
	}
	clone := name + nodedef.CloneInfix + "loose"
	if slices.ContainsFunc(r.funcs, func(f *tf.FunctionDef) bool { return f.GetSignature().GetName() == clone }) {
		return clone
	}
	c := nodedef.CopySignature(f)
	c.Signature = nodedef.RenameSignature(f.GetSignature(), clone)
	c.ArgAttr = nil
	c.NodeDef = r.nodesWithoutShapes(f)
	r.funcs = append(r.funcs, c)
	return clone
}

func sameShape(a, b *tf.TensorShapeProto) bool { return refines(a, b) && refines(b, a) }

// refines returns whether every tensor of shape also has the shape of.
func refines(shape, of *tf.TensorShapeProto) bool {
	if of.GetUnknownRank() {
		return true
	}
	return !shape.GetUnknownRank() && slices.EqualFunc(shape.GetDim(), of.GetDim(), func(a, b *tf.TensorShapeProto_Dim) bool {
		return b.GetSize() < 0 || a.GetSize() == b.GetSize()
	})
}

// sizesDiffer returns whether two shapes differ in rank, or in the size of one of the dimensions at.
func sizesDiffer(a, b *tf.TensorShapeProto, at dataflow.Dims) bool {
	if a.GetUnknownRank() || b.GetUnknownRank() || len(a.GetDim()) != len(b.GetDim()) {
		return true
	}
	for i, d := range b.GetDim() {
		if at&dataflow.DimSet(i) != 0 && a.GetDim()[i].GetSize() != d.GetSize() {
			return true
		}
	}
	return false
}

func shapeText(shape *tf.TensorShapeProto) string {
	if shape.GetUnknownRank() {
		return "of unknown rank"
	}
	sizes := []int64{}
	for _, d := range shape.GetDim() {
		sizes = append(sizes, d.GetSize())
	}
	return fmt.Sprint(sizes)
}
