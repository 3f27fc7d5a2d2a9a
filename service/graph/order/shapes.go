package order

import (
	"fmt"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// sameOutputShapes holds the shapes at the end of a section against those that its elements had there.
func sameOutputShapes(shapes, stated []*tf.TensorShapeProto) error {
	for c := range min(len(shapes), len(stated)) {
		if shapesConflict(shapes[c], stated[c]) {
			return fmt.Errorf("it would end a section with component %d of shape %s, not %s", c, shapeWords(shapes[c]), shapeWords(stated[c]))
		}
	}
	return nil
}

// shapesConflict tells whether no tensor has both shapes. Steps that give an element a size of their own do not change places unseen.
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

// sameOnShapes tells whether a map does the same to a component of other sizes than it was traced for, that stands behind so many more batches.
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

// shapeAfter is the shape of a component behind a map.
func (o *reordering) shapeAfter(s *graph.Step, function string, passage *dataflow.Dependencies, component int, shapes []*tf.TensorShapeProto) *tf.TensorShapeProto {
	if same := passage.Same[component]; same >= 0 && same < len(shapes) {
		return shapes[same]
	}
	if passage.From[component][component] {
		if change, shape := dataflow.ChangeAndShape(o.g, function, component, shapes[component]); change.Opaque == "" {
			return shape
		}
	}
	return o.g.OutputShapes(s.Node)[component]
}

// withShapes gives a function that knows the shapes of its components.
func (o *reordering) withShapes(f *tf.FunctionDef, shapes []*tf.TensorShapeProto) *tf.FunctionDef {
	var words []string
	same := true
	for i, shape := range shapes {
		own := f.GetArgAttr()[uint32(i)].GetAttr()["_output_shapes"].GetList().GetShape()
		same = same && (len(own) != 1 || sameShape(own[0], shape))
		words = append(words, shapeWords(shape))
	}
	if same {
		return f
	}
	c := nodedef.CopySignature(f)
	c.NodeDef = o.loosened(f)
	c.Signature = nodedef.RenameSignature(f.GetSignature(), f.GetSignature().GetName()+nodedef.CloneInfix+nodedef.ShortHash(append(words, "shapes")...))
	c.ArgAttr = map[uint32]*tf.FunctionDef_ArgAttrs{}
	for i, attrs := range f.GetArgAttr() {
		c.ArgAttr[i] = attrs
		if int(i) < len(shapes) {
			c.ArgAttr[i] = &tf.FunctionDef_ArgAttrs{Attr: map[string]*tf.AttrValue{"_output_shapes": nodedef.ShapesAttr(shapes[i : i+1])}}
		}
	}
	o.funcs = append(o.funcs, c)
	return c
}

// loosened are the nodes of a function, without the shapes that calls in it had in the original order.
func (o *reordering) loosened(f *tf.FunctionDef) (nodes []*tf.NodeDef) {
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
			nodedef.RenameCalls(n, name, o.loose(name))
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// loose gives a copy of a function that says nothing of its arguments' shapes.
func (o *reordering) loose(name string) string {
	f := o.g.Function(name)
	if f == nil {
		f = o.types.funcs[name]
	}
	clone := name + nodedef.CloneInfix + "loose"
	if slices.ContainsFunc(o.funcs, func(f *tf.FunctionDef) bool { return f.GetSignature().GetName() == clone }) {
		return clone
	}
	c := nodedef.CopySignature(f)
	c.Signature = nodedef.RenameSignature(f.GetSignature(), clone)
	c.ArgAttr = nil
	c.NodeDef = o.loosened(f)
	o.funcs = append(o.funcs, c)
	return clone
}

func sameShape(a, b *tf.TensorShapeProto) bool { return refines(a, b) && refines(b, a) }

// refines tells whether all that one shape says of sizes the other says as well.
func refines(shape, of *tf.TensorShapeProto) bool {
	if of.GetUnknownRank() {
		return true
	}
	return !shape.GetUnknownRank() && slices.EqualFunc(shape.GetDim(), of.GetDim(), func(a, b *tf.TensorShapeProto_Dim) bool {
		return b.GetSize() < 0 || a.GetSize() == b.GetSize()
	})
}

// sizesDiffer tells whether two shapes have other numbers of dimensions, or other sizes of some.
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

func shapeWords(shape *tf.TensorShapeProto) string {
	if shape.GetUnknownRank() {
		return "of unknown rank"
	}
	sizes := []int64{}
	for _, d := range shape.GetDim() {
		sizes = append(sizes, d.GetSize())
	}
	return fmt.Sprint(sizes)
}
