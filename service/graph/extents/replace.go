package extents

import (
	"context"
	"encoding/binary"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// prefix is the prefix of the names of all nodes that Divide adds.
const prefix = "pecan_extents/"

// Divide returns the graph of a dataset whose record files are divided into extents, and the number of extents. It returns
// nil if the dataset reads no large uncompressed TFRecord files, or if a file has no index. It also returns nil if the files
// alone make enough streams. It fails only if the context ends before the indexes are read.
func Divide(ctx context.Context, g *graph.Graph) (divided []byte, n int, err error) {
	root, isTree := g.Steps()
	if !isTree {
		return nil, 0, nil
	}
	r := &replacement{Editor: graph.NewEditor(g), g: g, a: analysis.New(g), users: usersOf(root), root: root.Node.GetName()}
	ignores := false
	root.Walk(func(s *graph.Step) {
		// After a damaged record, a local run continues with the next file, and a stream with the next extent.
		ignores = ignores || s.Node.GetOp() == "IgnoreErrorsDataset"
		if failed := r.replace(ctx, s); failed != nil {
			err = failed
		}
	})
	if r.total == 0 || ignores || err != nil {
		return nil, 0, err
	}
	if divided, err = r.Finish(r.root); err != nil {
		return nil, 0, nil
	}
	return divided, r.total, nil
}

// replacement is the graph with the files that are replaced by their extents so far.
type replacement struct {
	*graph.Editor
	g     *graph.Graph
	a     *analysis.Analysis
	users map[*graph.Step]*graph.Step
	// root is the name of the last step. total is the number of extents.
	root  string
	total int
}

// replace replaces the list of files that a step opens, if it opens files and they are worth it.
func (r *replacement) replace(ctx context.Context, s *graph.Step) error {
	src, ok := sourceOf(r.g, s)
	if !ok || r.users[s] == nil && s.Node.GetName() != r.root {
		// A dataset that a function uses is not divided either.
		return nil
	}
	used, by := Whole, []*graph.Step(nil)
	counted, most := false, enoughFiles-1
	if src.inOrder() {
		if used, by = taken(r.g, r.a, r.users, s); len(by) > 0 || positionsMatter(r.g, r.a, r.users, s) {
			counted, most = true, maxCountedFiles
		}
	} else if !anyOrder(r.users, s) {
		return nil
	}
	if len(src.names) > most {
		return nil
	}
	rows, err := extentsOf(ctx, src, used, counted)
	if err != nil || len(rows) < 2 {
		return err
	}
	r.write(src, rows)
	for _, step := range by {
		r.root = remove(r.Editor, r.users, step, r.root)
	}
	r.total += len(rows)
	return nil
}

// write makes the list of a step's files a list of extents, and lets the step open extents.
func (r *replacement) write(src source, rows []extent) {
	replaceList(r.Editor, src.list.Node, rows)
	name := analysis.ExtentReader + src.reader.GetSignature().GetName()
	r.AddFunction(name, extentReader(src.reader, name))
	n := r.Edit(src.step.Node.GetName())
	n.Attr["f"] = nodedef.FuncAttr(name)
	n.Attr["Targuments"] = nodedef.TypesAttr(nil)
	if len(src.names) > 1 {
		for _, s := range src.between {
			listColumns(r.Edit(s.Node.GetName()))
		}
		return
	}
	// One file has the order of its extents, whatever the step does with several files.
	n.Op, n.Input = "FlatMapDataset", []string{src.list.Node.GetName()}
	attrs := nodedef.DatasetAttrs(r.g.OutputTypes(src.step.Node), r.g.OutputShapes(src.step.Node))
	attrs["f"], attrs["Targuments"] = n.Attr["f"], n.Attr["Targuments"]
	if metadata, ok := n.Attr["metadata"]; ok {
		attrs["metadata"] = metadata
	}
	n.Attr = attrs
}

// listColumns gives a step the components of a list of extents.
func listColumns(n *tf.NodeDef) {
	types := []tf.DataType{tf.DataType_DT_STRING, tf.DataType_DT_INT64, tf.DataType_DT_INT64}
	n.Attr["output_shapes"] = nodedef.ShapesAttr([]*tf.TensorShapeProto{nodedef.Shape(), nodedef.Shape(), nodedef.Shape()})
	if n.GetOp() == "TensorSliceDataset" {
		n.Attr["Toutput_types"] = nodedef.TypesAttr(types)
		return
	}
	n.Attr["output_types"] = nodedef.TypesAttr(types)
}

// replaceList makes a list of files a list of extents.
func replaceList(e *graph.Editor, list *tf.NodeDef, rows []extent) {
	var lengths, names, offsets, counts []byte
	for _, r := range rows {
		lengths = binary.AppendUvarint(lengths, uint64(len(r.name)))
		names = append(names, r.name...)
		offsets = binary.LittleEndian.AppendUint64(offsets, uint64(r.offset))
		counts = binary.LittleEndian.AppendUint64(counts, uint64(r.records))
	}
	column := func(name string, t tf.DataType, content []byte) string {
		return e.Add(nodedef.Const(prefix+list.GetName()+name, &tf.TensorProto{
			Dtype: t, TensorShape: nodedef.Shape(int64(len(rows))), TensorContent: content,
		}))
	}
	n := e.Edit(list.GetName())
	n.Input = []string{
		column("/names", tf.DataType_DT_STRING, append(lengths, names...)),
		column("/offsets", tf.DataType_DT_INT64, offsets),
		column("/records", tf.DataType_DT_INT64, counts),
	}
	listColumns(n)
	n.Attr["is_files"] = nodedef.BoolAttr(false)
}
