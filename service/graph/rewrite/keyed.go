package rewrite

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// withIndexArgument returns the name of a copy of a step's function with the index as an argument: after the
// components, before the captured arguments. With returns, the copy also returns the index.
func (e *editor) withIndexArgument(name, path string, components int, keyed, returns bool) string {
	f := e.withIndex(name, name+"_pecan_index_"+nodedef.ShortHash(path), components, keyed)
	if returns {
		const result = indexArg + "_result"
		f.Signature.OutputArg = append(append([]*tf.OpDef_ArgDef(nil), f.Signature.OutputArg...), &tf.OpDef_ArgDef{Name: result, Type: tf.DataType_DT_INT64})
		f.NodeDef = append(f.NodeDef, nodedef.Identity(result, indexArg, tf.DataType_DT_INT64))
		ret := map[string]string{result: result + ":output:0"}
		for k, v := range f.Ret {
			ret[k] = v
		}
		f.Ret = ret
	}
	return f.Signature.Name
}

// withIndex copies a function with the index as an additional argument. If keyed, the copy draws random values
// from it.
func (e *editor) withIndex(name, copied string, at int, keyed bool) *tf.FunctionDef {
	from := e.Function(name)
	sig := from.GetSignature()
	f := &tf.FunctionDef{
		Attr: map[string]*tf.AttrValue{}, ArgAttr: map[uint32]*tf.FunctionDef_ArgAttrs{}, ResourceArgUniqueId: map[uint32]uint32{},
		Ret: from.GetRet(), ControlRet: from.GetControlRet(),
		Signature: &tf.OpDef{Name: copied, OutputArg: sig.GetOutputArg(), ControlOutput: sig.GetControlOutput(), Attr: sig.GetAttr(), IsStateful: sig.GetIsStateful()},
	}
	for k, v := range from.GetAttr() {
		if k != "_input_shapes" {
			f.Attr[k] = v
		}
	}
	later := func(i uint32) uint32 {
		if int(i) >= at {
			return i + 1
		}
		return i
	}
	for i, v := range from.GetArgAttr() {
		f.ArgAttr[later(i)] = v
	}
	for i, v := range from.GetResourceArgUniqueId() {
		f.ResourceArgUniqueId[later(i)] = v
	}
	args := sig.GetInputArg()
	f.Signature.InputArg = append(append(append(f.Signature.InputArg, args[:at]...), &tf.OpDef_ArgDef{Name: indexArg, Type: tf.DataType_DT_INT64}), args[at:]...)
	e.AddFunction(copied, f)
	f.NodeDef = append(f.NodeDef, from.GetNodeDef()...)
	if keyed {
		e.makeStatelessNodes(f)
	}
	return f
}

// makeStatelessNodes replaces a function's random ops by stateless ones, and passes the index to the functions
// that it calls.
func (e *editor) makeStatelessNodes(f *tf.FunctionDef) {
	const counter, alg = indexArg + "_counter", indexArg + "_alg"
	draws := false
	nodes := f.NodeDef
	f.NodeDef = nil
	for _, n := range nodes {
		c := nodedef.Copy(n)
		switch {
		case e.g.Ops().IsSeeded(n.GetOp()):
			draws = true
			e.makeStateless(f, c, counter, alg)
		case ops.CallsOnce[n.GetOp()] && e.anyDraws(n):
			for _, called := range nodedef.CalledFunctions(n) {
				at := len(e.Function(called).GetSignature().GetInputArg())
				copied := called + "_pecan_index_" + nodedef.ShortHash(f.Signature.Name, n.GetName())
				e.withIndex(called, copied, at, true)
				nodedef.RenameCalls(c, called, copied)
			}
			c.Input = nodedef.InsertInput(c.Input, indexArg)
			c.Attr["Tin"] = nodedef.TypesAttr(append(append([]tf.DataType(nil), c.Attr["Tin"].GetList().GetType()...), tf.DataType_DT_INT64))
		}
		f.NodeDef = append(f.NodeDef, c)
	}
	if !draws {
		return
	}
	// Philox counts samples in the lower half of its counter. The upper half is the index of the element.
	f.NodeDef = append(f.NodeDef,
		nodedef.Const(alg, &tf.TensorProto{Dtype: tf.DataType_DT_INT32, TensorShape: nodedef.Shape(), IntVal: []int32{philox}}),
		nodedef.Const(counter+"_low", &tf.TensorProto{Dtype: tf.DataType_DT_UINT64, TensorShape: nodedef.Shape(), Uint64Val: []uint64{0}}),
		&tf.NodeDef{Name: counter + "_high", Op: "Cast", Input: []string{indexArg}, Attr: map[string]*tf.AttrValue{
			"SrcT": nodedef.TypeAttr(tf.DataType_DT_INT64), "DstT": nodedef.TypeAttr(tf.DataType_DT_UINT64), "Truncate": nodedef.BoolAttr(false)}},
		nodedef.Pack(counter, tf.DataType_DT_UINT64, counter+"_low:output:0", counter+"_high:y:0"))
}

// philox is the number of the only algorithm that all stateless ops support on every device.
const philox = 1

// anyDraws returns whether a function that a node calls draws random values. It examines the originals of clones.
func (e *editor) anyDraws(n *tf.NodeDef) bool {
	for _, called := range nodedef.CalledFunctions(n) {
		if e.g.Function(called) == nil {
			called = called[:strings.LastIndex(called, nodedef.CloneInfix)]
		}
		if e.p.FunctionFacts(called).Random {
			return true
		}
	}
	return false
}

// makeStateless turns a stateful random op into the stateless one. The op's seeds must be derived already.
func (e *editor) makeStateless(f *tf.FunctionDef, c *tf.NodeDef, counter, alg string) {
	to := ops.StatelessOps[c.GetOp()]
	key := drawKey(c.Attr["seed"].GetI(), c.Attr["seed2"].GetI())
	name := indexArg + "_key_" + c.GetName()
	delete(c.Attr, "seed")
	delete(c.Attr, "seed2")
	if c.Op = to.Op; to.Op == ops.Multinomial {
		f.NodeDef = append(f.NodeDef, nodedef.Int64Const(name, int64(key>>1)), nodedef.Pack(name+"_seed", tf.DataType_DT_INT64, name+":output:0", indexArg))
		c.Input = nodedef.InsertInput(c.Input, name+"_seed:output:0")
		c.Attr["Tseed"] = nodedef.TypeAttr(tf.DataType_DT_INT64)
		return
	}
	f.NodeDef = append(f.NodeDef, nodedef.Const(name, &tf.TensorProto{Dtype: tf.DataType_DT_UINT64, TensorShape: nodedef.Shape(1), Uint64Val: []uint64{key}}))
	inputs := append([]string{c.Input[0]}, name+":output:0", counter+":output:0", alg+":output:0")
	c.Input = append(inputs, c.Input[1:]...)
	if to.Dtype == "" {
		return
	}
	dtype, shape := c.Attr[to.Dtype], c.Attr[to.Shape]
	delete(c.Attr, to.Dtype)
	delete(c.Attr, to.Shape)
	c.Attr["dtype"], c.Attr["Tshape"] = dtype, shape
}
