package rewrite

import (
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// indexColumn is the plan of the index column: the index of an element as an additional, last component. The
// column begins as close to the cut as possible and ends at the last step with keyed randomness. A filter
// between them does not change the values that such a step draws, because the index stays with its element.
type indexColumn struct {
	// in has the steps that get the index column. out has the steps that return it.
	in, out map[*graph.Step]bool
	// number has the steps after which the index column begins. If the cut is there, the column begins after the cut.
	number map[*graph.Step]bool
	// skipped is the number of elements that are skipped after the step, in a stream that begins at an index.
	skipped map[*graph.Step]int64
}

// planIndex plans the index column for the steps with keyed randomness.
func (e *editor) planIndex(root *graph.Step) {
	e.index = indexColumn{in: map[*graph.Step]bool{}, out: map[*graph.Step]bool{}, number: map[*graph.Step]bool{}, skipped: map[*graph.Step]int64{}}
	var visit func(s *graph.Step, wanted bool)
	visit = func(s *graph.Step, wanted bool) {
		_, cut := e.plan.division.Cuts[s]
		keyed := e.p.Keyed[s.Node.GetName()]
		// The index column begins again after a step that freezes. Cached elements have no index, and the elements
		// must not depend on the cache. Where a step is cached that does not freeze, both columns are equal.
		through := !cut && s != e.plan.division.Batch && !e.g.Freezes(s.Node) && s.Node.GetName() != e.p.CachedStep && analysis.PassesIndex(s)
		e.index.out[s] = wanted && through
		e.index.number[s] = wanted && !through
		e.index.in[s] = keyed || wanted && through
		for _, in := range s.In {
			visit(in, e.index.in[s])
		}
		for _, c := range s.Captured {
			visit(c, false)
		}
	}
	visit(root, false)
}

const (
	// indexPrefix begins the names of the nodes of an index column. The name of the node whose elements they
	// number follows.
	indexPrefix = "pecan_index/"
	// indexArg is the argument of a function for the index.
	indexArg = "pecan_index"
)

func numbered(types []tf.DataType, shapes []*tf.TensorShapeProto) ([]tf.DataType, []*tf.TensorShapeProto) {
	types = append(append([]tf.DataType(nil), types...), tf.DataType_DT_INT64)
	return types, append(append([]*tf.TensorShapeProto(nil), shapes...), nodedef.Shape())
}

// addIndex adds the index column to the output of a step, if the column begins there.
func (e *editor) addIndex(s *graph.Step, input string) string {
	if !e.index.number[s] {
		return input
	}
	prefix := indexPrefix + s.Node.GetName()
	counts := &tf.NodeDef{Name: prefix + "/range", Op: "RangeDataset",
		Input: []string{e.AddInt(prefix+"/start", e.index.skipped[s]), e.AddInt(prefix+"/stop", 1<<62), e.AddInt(prefix+"/step", 1)},
		Attr:  nodedef.DatasetAttrs([]tf.DataType{tf.DataType_DT_INT64}, []*tf.TensorShapeProto{nodedef.Shape()})}
	zip := &tf.NodeDef{Name: prefix, Op: "ZipDataset", Input: []string{input, e.Add(counts)}, Attr: nodedef.DatasetAttrs(numbered(e.outputOf(s)))}
	zip.Attr["N"] = nodedef.IntAttr(2)
	return e.Add(zip)
}

// passIndex makes a step get the index column, draw random values from it, and return it.
func (e *editor) passIndex(s *graph.Step) string {
	name := s.Node.GetName()
	if !e.index.in[s] {
		return name
	}
	n := e.Edit(name)
	attr := ops.ElementFunctionAttr(n.GetOp())
	isFilter := attr == "predicate"
	components := len(e.g.OutputTypes(s.In[0].OutputOf))
	if attr != "" {
		f := n.Attr[attr].GetFunc()
		n.Attr[attr] = &tf.AttrValue{Value: &tf.AttrValue_Func{Func: &tf.NameAttrList{
			Name: e.withIndexArgument(f.GetName(), name, components, e.p.Keyed[name], e.index.out[s] && !isFilter), Attr: f.GetAttr()}}}
	}
	if !e.index.out[s] && !isFilter {
		return name
	}
	types, shapes := e.g.OutputTypes(n), e.g.OutputShapes(n)
	all, allShapes := numbered(types, shapes)
	n.Attr["output_types"], n.Attr["output_shapes"] = nodedef.TypesAttr(all), nodedef.ShapesAttr(allShapes)
	if e.index.out[s] {
		return name
	}
	// A filter returns its input, so a map after it removes the index.
	return e.dropNumbers(name, types, shapes)
}

func (e *editor) dropNumbers(name string, types []tf.DataType, shapes []*tf.TensorShapeProto) string {
	f := &tf.FunctionDef{Signature: &tf.OpDef{Name: "pecan_drop_" + nodedef.ShortHash(name)}, Ret: map[string]string{}}
	for i, t := range types {
		arg, out := fmt.Sprintf("component_%d", i), fmt.Sprintf("result_%d", i)
		f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: arg, Type: t})
		f.Signature.OutputArg = append(f.Signature.OutputArg, &tf.OpDef_ArgDef{Name: out, Type: t})
		f.NodeDef = append(f.NodeDef, nodedef.Identity("identity_"+arg, arg, t))
		f.Ret[out] = "identity_" + arg + ":output:0"
	}
	f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: indexArg, Type: tf.DataType_DT_INT64})
	e.AddFunction(f.Signature.Name, f)
	drop := &tf.NodeDef{Name: indexPrefix + name + "/drop", Op: "MapDataset", Input: []string{name}, Attr: nodedef.DatasetAttrs(types, shapes)}
	drop.Attr["f"] = nodedef.FuncAttr(f.Signature.Name)
	drop.Attr["Targuments"] = nodedef.TypesAttr(nil)
	drop.Attr["use_inter_op_parallelism"] = nodedef.BoolAttr(true)
	drop.Attr["preserve_cardinality"] = nodedef.BoolAttr(true)
	return e.Add(drop)
}
