package rewrite

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// relaxBatches makes a batch return its incomplete last batch, also with drop_remainder=True. It is the
// remainder that the closing stream batches again, and the closing stream applies drop_remainder.
func (e *editor) relaxBatches(root, batch *graph.Step) {
	e.Add(nodedef.BoolConst("pecan_keep_remainder", false))
	e.SetInput(batch.Node.GetName(), "drop_remainder", "pecan_keep_remainder")
	for s := root; ; s = s.In[0] {
		if s.Rule.Kind != ops.Asserted {
			n := e.Edit(s.Node.GetName())
			n.Attr["output_shapes"] = nodedef.ShapesAttr(anyRows(e.g.OutputShapes(s.Node)))
		}
		if s == batch {
			return
		}
	}
}

// comesAfterBatch reports whether a step is the batch whose short last elements are joined, or has its elements.
func (e *editor) comesAfterBatch(s *graph.Step) bool {
	batch := e.plan.division.Batch
	for ; batch != nil && s != batch && len(s.In) == 1; s = s.In[0] {
	}
	return batch != nil && s == batch
}

// onlyFullBatches makes a batch drop its incomplete last batch, whatever the user chose. The closing stream of the next
// epoch reads these rows again, so no row is lost.
func (e *editor) onlyFullBatches(batch *graph.Step) {
	e.Add(nodedef.BoolConst("pecan_only_full_batches", true))
	e.SetInput(batch.Node.GetName(), "drop_remainder", "pecan_only_full_batches")
}

// anyRows makes the first dimension of each shape unknown.
func anyRows(shapes []*tf.TensorShapeProto) []*tf.TensorShapeProto {
	out := make([]*tf.TensorShapeProto, len(shapes))
	for i, s := range shapes {
		out[i] = s
		if !s.GetUnknownRank() && len(s.GetDim()) > 0 {
			dims := append([]*tf.TensorShapeProto_Dim{{Size: -1}}, s.GetDim()[1:]...)
			out[i] = &tf.TensorShapeProto{Dim: dims}
		}
	}
	return out
}

func rowShapes(shapes []*tf.TensorShapeProto) []*tf.TensorShapeProto {
	out := make([]*tf.TensorShapeProto, len(shapes))
	for i, s := range shapes {
		out[i] = s
		if !s.GetUnknownRank() && len(s.GetDim()) > 0 {
			out[i] = &tf.TensorShapeProto{Dim: s.GetDim()[1:]}
		}
	}
	return out
}

// pullInto makes a batch step read the remainders from PecanPull: row by row, or as batches for a step that
// divides them itself.
func (e *editor) pullInto(batch *graph.Step) {
	types := e.g.OutputTypes(batch.Node)
	shapes := anyRows(e.g.OutputShapes(batch.Node))
	input := e.addPull(types, shapes, e.at.Source)
	if batch.Rule.Kind == ops.Batched {
		rows := &tf.NodeDef{Name: pullPrefix + "/rows", Input: []string{input}, Attr: nodedef.DatasetAttrs(types, rowShapes(shapes))}
		e.sliceBatches(rows, rows.Name)
		input = e.Add(rows)
	}
	e.Edit(batch.Node.GetName()).Input[batch.InAt[0]] = input
	e.rewriteStep(batch, position{})
}
