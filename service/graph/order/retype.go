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

// movers are the ops that compute no values: they move or choose them, or look at shapes. Only they work on values of another type as
// they did before; arithmetic of uint8 is another than that of floats.
var movers = map[string]bool{
	"Identity": true, "IdentityN": true, "StopGradient": true, "PreventGradient": true, "Snapshot": true, "EnsureShape": true,
	"ReverseV2": true, "Slice": true, "StridedSlice": true, "Pad": true, "MirrorPad": true, "Transpose": true, "Tile": true, "GatherV2": true,
	"ExpandDims": true, "Squeeze": true, "Reshape": true, "Select": true, "SelectV2": true, "ConcatV2": true, "Pack": true, "Unpack": true,
	"Shape": true, "Size": true, "Rank": true, "ResizeNearestNeighbor": true,
	"If": true, "StatelessIf": true, "PartitionedCall": true, "StatefulPartitionedCall": true,
}

// retyping gives functions for arguments of other types, each once.
type retyping struct {
	g     *graph.Graph
	funcs map[string]*tf.FunctionDef
}

// of gives the function for arguments of some types: itself where these are its own, else a copy, in which the types follow from the
// arguments as TensorFlow would have them follow. Where that asks for arithmetic in another type it is an error.
func (r *retyping) of(name string, types []tf.DataType) (*tf.FunctionDef, error) {
	f := r.g.Function(name)
	own := f.GetSignature().GetInputArg()
	if len(own) != len(types) {
		return nil, fmt.Errorf("the function %s has %d arguments, not %d", nodedef.Quote(name), len(own), len(types))
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

// typedBody is a function whose nodes get their types, inputs before users.
type typedBody struct {
	*retyping
	// types are those of all results of a node, and of an argument.
	types map[string][]tf.DataType
	nodes map[string]*tf.NodeDef
}

// input gives the type of what an input inside the function names.
func (b *typedBody) input(input string) (tf.DataType, error) {
	parts := strings.Split(input, ":")
	types := b.types[parts[0]]
	n, at := b.nodes[parts[0]], 0
	if len(parts) > 1 {
		if at = nodedef.OutputIndex(input); at < 0 {
			return 0, fmt.Errorf("%s names no result", nodedef.Quote(input))
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
		return 0, fmt.Errorf("%s names no result", nodedef.Quote(input))
	}
	return types[at], nil
}

// retype gives a node the types of its inputs, and notes those of its results.
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
				return fmt.Errorf("%s (%s) does not take %s", nodedef.Quote(n.GetName()), n.GetOp(), typeName(value.GetType()))
			}
		}
	}
	if changed && !movers[n.GetOp()] && !b.turns(n) {
		return fmt.Errorf("%s (%s) would compute with another type", nodedef.Quote(n.GetName()), n.GetOp())
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

// turns tells whether a node moves the values of a picture to other places and puts in zeros, which are the same in every type.
func (b *typedBody) turns(n *tf.NodeDef) bool {
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

// bindTypes notes which types an argument of an op gives to its attributes.
func bindTypes(bound map[string]*tf.AttrValue, arg *tf.OpDef_ArgDef, types []tf.DataType) error {
	if key := arg.GetTypeListAttr(); key != "" {
		bound[key] = nodedef.TypesAttr(types)
		return nil
	}
	for _, t := range types {
		key := arg.GetTypeAttr()
		if key == "" {
			if t != arg.GetType() {
				return fmt.Errorf("its argument %s is %s", arg.GetName(), typeName(arg.GetType()))
			}
			continue
		}
		if known, ok := bound[key]; ok && known.GetType() != t {
			return fmt.Errorf("it would be given %s and %s together", typeName(known.GetType()), typeName(t))
		}
		bound[key] = nodedef.TypeAttr(t)
	}
	return nil
}

func sameTypes(a, b *tf.AttrValue) bool {
	return a.GetType() == b.GetType() && slices.Equal(a.GetList().GetType(), b.GetList().GetType())
}

func typeName(t tf.DataType) string { return strings.ToLower(strings.TrimPrefix(t.String(), "DT_")) }

// retypeCalls gives a node that calls functions those for the types of its arguments.
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
			return fmt.Errorf("the branches of %s would give different types", nodedef.Quote(n.GetName()))
		}
		n.Attr["Tout"] = nodedef.TypesAttr(results)
		nodedef.RenameCalls(n, name, called.GetSignature().GetName())
	}
	return nil
}
