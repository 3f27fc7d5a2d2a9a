package order

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// movers are the ops that compute no values: they move or select values, or read shapes. Their results do not
// depend on the type. Arithmetic does: that of uint8 differs from that of floats.
var movers = map[string]bool{
	"Identity": true, "IdentityN": true, "StopGradient": true, "PreventGradient": true, "Snapshot": true, "EnsureShape": true,
	"ReverseV2": true, "Slice": true, "StridedSlice": true, "Pad": true, "MirrorPad": true, "Transpose": true, "Tile": true, "GatherV2": true,
	"ExpandDims": true, "Squeeze": true, "Reshape": true, "Select": true, "SelectV2": true, "ConcatV2": true, "Pack": true, "Unpack": true,
	"Shape": true, "Size": true, "Rank": true, "ResizeNearestNeighbor": true,
	"If": true, "StatelessIf": true, "PartitionedCall": true, "StatefulPartitionedCall": true,
}

// retyping copies functions for arguments of other types. It copies each function once per list of types.
type retyping struct {
	g     *graph.Graph
	funcs map[string]*tf.FunctionDef
}

// of returns a function for arguments of other types. If the types are equal, it is the function itself,
// otherwise a copy with the types that TensorFlow would infer. Arithmetic in another type is an error.
func (r *retyping) of(name string, types []tf.DataType) (*tf.FunctionDef, error) {
	f := r.g.Function(name)
	own := f.GetSignature().GetInputArg()
	if len(own) != len(types) {
		return nil, fmt.Errorf("function %s has %d arguments, not %d", nodedef.Quote(name), len(own), len(types))
	}
	same := true
	for i, arg := range own {
		same = same && arg.GetType() == types[i]
	}
	if same {
		return f, nil
	}
	clone := name + nodedef.CloneInfix + nodedef.ShortHash("types", fmt.Sprint(types))
	if done, ok := r.funcs[clone]; ok {
		return done, nil
	}
	c := nodedef.CopySignature(f)
	sig := f.GetSignature()
	c.Signature = nodedef.RenameSignature(sig, clone)
	c.Signature.InputArg, c.Signature.OutputArg = nil, nil
	body := &typedBody{retyping: r, types: map[string][]tf.DataType{}, nodes: map[string]*tf.NodeDef{}}
	for i, arg := range own {
		c.Signature.InputArg = append(c.Signature.InputArg, &tf.OpDef_ArgDef{Name: arg.GetName(), Type: types[i], HandleData: arg.GetHandleData()})
		body.types[arg.GetName()] = types[i : i+1]
	}
	nodes, names := map[string]*tf.NodeDef{}, []string{}
	for _, n := range f.GetNodeDef() {
		nodes[n.GetName()] = n
		names = append(names, n.GetName())
	}
	sorted, _ := graph.SortFunctionNodes(names, nodes)
	for _, name := range sorted {
		if err := body.retype(nodes[name]); err != nil {
			return nil, err
		}
	}
	for _, n := range f.GetNodeDef() {
		c.NodeDef = append(c.NodeDef, body.nodes[n.GetName()])
	}
	for _, result := range sig.GetOutputArg() {
		t, err := body.input(f.GetRet()[result.GetName()])
		if err != nil {
			return nil, err
		}
		c.Signature.OutputArg = append(c.Signature.OutputArg, &tf.OpDef_ArgDef{Name: result.GetName(), Type: t})
	}
	r.funcs[clone] = c
	return c, nil
}

// typedBody is the body of a function whose nodes get new types. A node gets its types after its inputs.
type typedBody struct {
	*retyping
	// types has the types of the results of each node, and of each argument.
	types map[string][]tf.DataType
	nodes map[string]*tf.NodeDef
}

// input returns the type of an input inside the function.
func (b *typedBody) input(input string) (tf.DataType, error) {
	parts := strings.Split(input, ":")
	types := b.types[parts[0]]
	n, at := b.nodes[parts[0]], 0
	if len(parts) > 1 {
		if at = nodedef.OutputIndex(input); at < 0 {
			return 0, fmt.Errorf("input %s is no result of a node", nodedef.Quote(input))
		}
	}
	if len(parts) == 3 && n != nil {
		for _, out := range b.g.Ops().Def(n.GetOp()).GetOutputArg() {
			if out.GetName() == parts[1] {
				break
			}
			size, _ := b.g.ArgSize(out, n)
			at += size
		}
	}
	if at >= len(types) {
		return 0, fmt.Errorf("input %s is no result of a node", nodedef.Quote(input))
	}
	return types[at], nil
}

// retype sets a node's types from those of its inputs, and records the types of its results.
func (b *typedBody) retype(original *tf.NodeDef) error {
	n := nodedef.Copy(original)
	def := b.g.Ops().Def(n.GetOp())
	b.nodes[n.GetName()] = n
	bound := map[string]*tf.AttrValue{}
	at := 0
	for _, arg := range def.GetInputArg() {
		size, _ := b.g.ArgSize(arg, original)
		var types []tf.DataType
		for range size {
			t, err := b.input(n.GetInput()[at])
			if err != nil {
				return err
			}
			types, at = append(types, t), at+1
		}
		if err := bindTypes(bound, arg, types); err != nil {
			return fmt.Errorf("%s (%s): %w", nodedef.Quote(n.GetName()), n.GetOp(), err)
		}
	}
	changed := false
	for key, value := range bound {
		if was := b.g.Attr(original, key); !sameTypes(was, value) {
			changed = true
			n.Attr[key] = value
			if allowed := ops.AttrDef(def, key).GetAllowedValues().GetList().GetType(); len(allowed) > 0 && !slices.Contains(allowed, value.GetType()) {
				return fmt.Errorf("op %s (%s) does not support %s", nodedef.Quote(n.GetName()), n.GetOp(), typeName(value.GetType()))
			}
		}
	}
	if changed && !movers[n.GetOp()] && !b.projectsNearest(n) {
		return fmt.Errorf("op %s (%s) would compute with another type", nodedef.Quote(n.GetName()), n.GetOp())
	}
	if changed {
		if err := b.retypeCalls(n); err != nil {
			return err
		}
	}
	for _, out := range def.GetOutputArg() {
		size, _ := b.g.ArgSize(out, n)
		switch {
		case out.GetTypeListAttr() != "":
			b.types[n.GetName()] = append(b.types[n.GetName()], b.g.Attr(n, out.GetTypeListAttr()).GetList().GetType()...)
		default:
			t := out.GetType()
			if out.GetTypeAttr() != "" {
				t = b.g.Attr(n, out.GetTypeAttr()).GetType()
			}
			b.types[n.GetName()] = append(b.types[n.GetName()], slices.Repeat([]tf.DataType{t}, size)...)
		}
	}
	return nil
}

// projectsNearest returns whether a node transforms an image by nearest-neighbour interpolation, and fills with
// 0 or with values of the image. Such a node moves values and computes none, and 0 is the same in every type.
func (b *typedBody) projectsNearest(n *tf.NodeDef) bool {
	if n.GetOp() != dataflow.ImageProjectiveOp || !dataflow.TakesNearest(n) {
		return false
	}
	at := b.g.InputIndex(n, "fill_value")
	if string(n.GetAttr()["fill_mode"].GetS()) != "CONSTANT" || at < 0 {
		return at >= 0
	}
	fill := nodedef.Tensor(b.nodes[nodedef.InputNode(n.GetInput()[at])])
	other := func(v float32) bool { return v != 0 }
	return fill != nil && !slices.ContainsFunc(fill.GetFloatVal(), other) && len(bytes.Trim(fill.GetTensorContent(), "\x00")) == 0
}

// bindTypes records the types that an argument of an op sets for the op's attributes.
func bindTypes(bound map[string]*tf.AttrValue, arg *tf.OpDef_ArgDef, types []tf.DataType) error {
	if key := arg.GetTypeListAttr(); key != "" {
		bound[key] = nodedef.TypesAttr(types)
		return nil
	}
	for _, t := range types {
		key := arg.GetTypeAttr()
		if key == "" {
			if t != arg.GetType() {
				return fmt.Errorf("its argument %s must be %s", arg.GetName(), typeName(arg.GetType()))
			}
			continue
		}
		if known, ok := bound[key]; ok && known.GetType() != t {
			return fmt.Errorf("its inputs would have the types %s and %s", typeName(known.GetType()), typeName(t))
		}
		bound[key] = nodedef.TypeAttr(t)
	}
	return nil
}

func sameTypes(a, b *tf.AttrValue) bool {
	return a.GetType() == b.GetType() && slices.Equal(a.GetList().GetType(), b.GetList().GetType())
}

func typeName(t tf.DataType) string { return strings.ToLower(strings.TrimPrefix(t.String(), "DT_")) }

// retypeCalls makes a node call functions for the types of its arguments.
func (b *typedBody) retypeCalls(n *tf.NodeDef) error {
	for i, name := range nodedef.CalledFunctions(n) {
		called, err := b.of(name, b.g.Attr(n, "Tin").GetList().GetType())
		if err != nil {
			return err
		}
		var results []tf.DataType
		for _, out := range called.GetSignature().GetOutputArg() {
			results = append(results, out.GetType())
		}
		if i > 0 && !slices.Equal(n.Attr["Tout"].GetList().GetType(), results) {
			return fmt.Errorf("the branches of %s would return different types", nodedef.Quote(n.GetName()))
		}
		n.Attr["Tout"] = nodedef.TypesAttr(results)
		nodedef.RenameCalls(n, name, called.GetSignature().GetName())
	}
	return nil
}
