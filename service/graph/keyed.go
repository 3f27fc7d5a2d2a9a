package graph

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// A keyed step draws its random values from a key and the number of the element, not from a generator that goes on from call
// to call: each stateful random op becomes its stateless twin. So its calls may run side by side and begin at any element, and
// the values are the same. docs/design/0007 has the reasons.

// twin is the stateless form of a random op.
type twin struct {
	op string
	// dtype and shape are the names of the stateful op's attributes for what the twin calls dtype and Tshape; "" for none.
	dtype, shape string
}

var twins = map[string]twin{
	"RandomUniform":        {op: "StatelessRandomUniformV2", dtype: "dtype", shape: "T"},
	"RandomStandardNormal": {op: "StatelessRandomNormalV2", dtype: "dtype", shape: "T"},
	"TruncatedNormal":      {op: "StatelessTruncatedNormalV2", dtype: "dtype", shape: "T"},
	"RandomUniformInt":     {op: "StatelessRandomUniformIntV2", dtype: "Tout", shape: "T"},
	"RandomShuffle":        {op: "StatelessShuffle"},
	"Multinomial":          {op: multinomial},
}

// multinomial takes a seed of two numbers where the others take a key and a counter.
const multinomial = "StatelessMultinomial"

// onceCalls are the ops that call each of their functions at most once.
var onceCalls = wordSet(`PartitionedCall StatefulPartitionedCall If StatelessIf Case StatelessCase`)

// elementFunction names the attribute with the function of a step that can be keyed: it is called once for each element.
func elementFunction(op string) string {
	switch op {
	case "MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2":
		return "f"
	case "FilterDataset", "ParallelFilterDataset":
		return "predicate"
	}
	return ""
}

// keyable tells whether all that a step draws can be keyed.
func (p *planner) keyable(s *step) bool {
	attr := elementFunction(s.node.GetOp())
	if f := p.facts(s); attr == "" || !f.draws || f.writes {
		return false
	}
	for _, c := range p.captures(s.node) {
		if c.use.randomState() {
			return false
		}
	}
	return p.keyableFunction(s.node.GetAttr()[attr].GetFunc().GetName())
}

func (p *planner) keyableFunction(name string) bool {
	for _, n := range p.g.functions[name].GetNodeDef() {
		if p.g.ops.isSeeded(n.GetOp()) && twins[n.GetOp()].op == "" || generatorOps[n.GetOp()] {
			return false
		}
		for _, called := range calledFunctions(n) {
			if p.functionFacts(called).draws && (!onceCalls[n.GetOp()] || !p.keyableFunction(called)) {
				return false
			}
		}
	}
	return true
}

// key finds the steps that are keyed in a mode. Below a repeat there are none: each pass would draw the same again.
func (p *planner) key(root *step, mode pecanv1.Mode) {
	p.keyed = map[string]bool{}
	if !keepsOrder(mode) {
		return
	}
	counts := map[*step]bool{}
	p.eachCounted(root, func(s *step, counted bool) { counts[s] = counted && p.races(s) })
	var below func(s *step)
	below = func(s *step) {
		if (mode == pecanv1.Mode_MODE_DETERMINISTIC || counts[s]) && p.keyable(s) {
			p.keyed[s.node.GetName()] = true
		}
		if s.rule.kind == repeated {
			return
		}
		for _, in := range s.in {
			below(in)
		}
	}
	below(root)
}

// carriage is where the numbers of elements travel as one more component, the last one: from as near to the cut as they get up
// to the last step that draws by them. A filter between changes no values that way.
type carriage struct {
	// in and out: a step takes numbers, and gives them on.
	in, out map[*step]bool
	// number: elements are numbered above the step (and above the cut, if that is there).
	number map[*step]bool
	// left is how many elements are left out above a step, in a stream that begins at an index.
	left map[*step]int64
}

// carry plans the carriage for keyed steps.
func (e *editor) carry(root *step) {
	e.cargo = carriage{in: map[*step]bool{}, out: map[*step]bool{}, number: map[*step]bool{}, left: map[*step]int64{}}
	var below func(s *step, wanted bool)
	below = func(s *step, wanted bool) {
		_, cut := e.plan.way.cuts[s]
		keyed := e.p.keyed[s.node.GetName()]
		// Above a cached step elements are numbered anew: what is kept has no numbers, and whether it is kept is not to be seen.
		through := !cut && s != e.plan.way.batch && !e.p.g.isMark(s.node) && carries(s)
		e.cargo.out[s] = wanted && through
		e.cargo.number[s] = wanted && !through
		e.cargo.in[s] = keyed || wanted && through
		for _, in := range s.in {
			below(in, e.cargo.in[s])
		}
		for _, c := range s.captured {
			below(c, false)
		}
	}
	below(root, false)
}

// carries tells whether a step can hand one more component on for each element.
func carries(s *step) bool {
	switch s.rule.kind {
	case pass, position, asserted:
		return true
	case oneToOne, perElement:
		return elementFunction(s.node.GetOp()) != "" || s.node.GetOp() == "IgnoreErrorsDataset"
	case shuffled:
		return s.node.GetOp() != "SnapshotDatasetV2"
	}
	return false
}

const (
	// indexPrefix begins the names of what numbers elements; the name of the node that gives them follows.
	indexPrefix = "pecan_index/"
	// indexArg is the argument by which a function gets the number.
	indexArg = "pecan_index"
)

func numbered(types []tf.DataType, shapes []*tf.TensorShapeProto) ([]tf.DataType, []*tf.TensorShapeProto) {
	types = append(append([]tf.DataType(nil), types...), tf.DataType_DT_INT64)
	return types, append(append([]*tf.TensorShapeProto(nil), shapes...), shapeOf())
}

// number adds the numbers to what a step gives, where that is their beginning.
func (e *editor) number(s *step, input string) string {
	if !e.cargo.number[s] {
		return input
	}
	prefix := indexPrefix + s.node.GetName()
	counts := &tf.NodeDef{Name: prefix + "/range", Op: "RangeDataset",
		Input: []string{e.addInt(prefix+"/start", e.cargo.left[s]), e.addInt(prefix+"/stop", 1<<62), e.addInt(prefix+"/step", 1)},
		Attr:  datasetAttrs([]tf.DataType{tf.DataType_DT_INT64}, []*tf.TensorShapeProto{shapeOf()})}
	zip := &tf.NodeDef{Name: prefix, Op: "ZipDataset", Input: []string{input, e.add(counts)}, Attr: datasetAttrs(numbered(e.outputOf(s)))}
	zip.Attr["N"] = intAttr(2)
	return e.add(zip)
}

// passOn lets a step take the numbers, draw by them and give them on.
func (e *editor) passOn(s *step) string {
	name := s.node.GetName()
	if !e.cargo.in[s] {
		return name
	}
	n := e.edit(name)
	attr := elementFunction(n.GetOp())
	isFilter := attr == "predicate"
	components := len(e.g.outputTypes(s.in[0].like))
	if attr != "" {
		f := n.Attr[attr].GetFunc()
		n.Attr[attr] = &tf.AttrValue{Value: &tf.AttrValue_Func{Func: &tf.NameAttrList{
			Name: e.indexed(f.GetName(), name, components, e.p.keyed[name], e.cargo.out[s] && !isFilter), Attr: f.GetAttr()}}}
	}
	if !e.cargo.out[s] && !isFilter {
		return name
	}
	types, shapes := e.g.outputTypes(n), e.g.outputShapes(n)
	all, allShapes := numbered(types, shapes)
	n.Attr["output_types"], n.Attr["output_shapes"] = typesAttr(all), shapesAttr(allShapes)
	if e.cargo.out[s] {
		return name
	}
	// A filter gives what it gets; the number goes behind it.
	return e.dropNumbers(name, types, shapes)
}

func (e *editor) dropNumbers(name string, types []tf.DataType, shapes []*tf.TensorShapeProto) string {
	f := &tf.FunctionDef{Signature: &tf.OpDef{Name: "pecan_drop_" + shortHash(name)}, Ret: map[string]string{}}
	for i, t := range types {
		arg, out := fmt.Sprintf("component_%d", i), fmt.Sprintf("result_%d", i)
		f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: arg, Type: t})
		f.Signature.OutputArg = append(f.Signature.OutputArg, &tf.OpDef_ArgDef{Name: out, Type: t})
		f.NodeDef = append(f.NodeDef, identity("identity_"+arg, arg, t))
		f.Ret[out] = "identity_" + arg + ":output:0"
	}
	f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: indexArg, Type: tf.DataType_DT_INT64})
	e.funcs[f.Signature.Name] = f
	drop := &tf.NodeDef{Name: indexPrefix + name + "/drop", Op: "MapDataset", Input: []string{name}, Attr: datasetAttrs(types, shapes)}
	drop.Attr["f"] = funcAttr(f.Signature.Name)
	drop.Attr["Targuments"] = typesAttr(nil)
	drop.Attr["use_inter_op_parallelism"] = boolAttr(true)
	drop.Attr["preserve_cardinality"] = boolAttr(true)
	return e.add(drop)
}

func identity(name, input string, t tf.DataType) *tf.NodeDef {
	return &tf.NodeDef{Name: name, Op: "Identity", Input: []string{input}, Attr: map[string]*tf.AttrValue{"T": typeAttr(t)}}
}

// indexed copies a step's function with the number behind the components that it takes, before what it captures.
func (e *editor) indexed(name, path string, components int, keyed, gives bool) string {
	f := e.withIndex(name, name+"_pecan_index_"+shortHash(path), components, keyed)
	if gives {
		const result = indexArg + "_result"
		f.Signature.OutputArg = append(append([]*tf.OpDef_ArgDef(nil), f.Signature.OutputArg...), &tf.OpDef_ArgDef{Name: result, Type: tf.DataType_DT_INT64})
		f.NodeDef = append(f.NodeDef, identity(result, indexArg, tf.DataType_DT_INT64))
		ret := map[string]string{result: result + ":output:0"}
		for k, v := range f.Ret {
			ret[k] = v
		}
		f.Ret = ret
	}
	return f.Signature.Name
}

// withIndex copies a function with one more argument, and draws by it.
func (e *editor) withIndex(name, copied string, at int, keyed bool) *tf.FunctionDef {
	from := e.function(name)
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
	e.funcs[copied] = f
	f.NodeDef = append(f.NodeDef, from.GetNodeDef()...)
	if keyed {
		e.keyNodes(f)
	}
	return f
}

// keyNodes puts the stateless twins of a function's random ops in, and hands the number to the functions it calls.
func (e *editor) keyNodes(f *tf.FunctionDef) {
	const counter, alg = indexArg + "_counter", indexArg + "_alg"
	draws := false
	nodes := f.NodeDef
	f.NodeDef = nil
	for _, n := range nodes {
		c := copyNode(n)
		switch {
		case e.g.ops.isSeeded(n.GetOp()):
			draws = true
			e.keyNode(f, c, counter, alg)
		case onceCalls[n.GetOp()] && e.anyDraws(n):
			for _, called := range calledFunctions(n) {
				at := len(e.function(called).GetSignature().GetInputArg())
				copied := called + "_pecan_index_" + shortHash(f.Signature.Name, n.GetName())
				e.withIndex(called, copied, at, true)
				renameCalls(c, called, copied)
			}
			c.Input = withInput(c.Input, indexArg)
			c.Attr["Tin"] = typesAttr(append(append([]tf.DataType(nil), c.Attr["Tin"].GetList().GetType()...), tf.DataType_DT_INT64))
		}
		f.NodeDef = append(f.NodeDef, c)
	}
	if !draws {
		return
	}
	// Philox counts samples in the lower half of its counter; the upper half has the number of the element.
	f.NodeDef = append(f.NodeDef,
		constNode(alg, &tf.TensorProto{Dtype: tf.DataType_DT_INT32, TensorShape: shapeOf(), IntVal: []int32{philox}}),
		constNode(counter+"_low", &tf.TensorProto{Dtype: tf.DataType_DT_UINT64, TensorShape: shapeOf(), Uint64Val: []uint64{0}}),
		&tf.NodeDef{Name: counter + "_high", Op: "Cast", Input: []string{indexArg}, Attr: map[string]*tf.AttrValue{
			"SrcT": typeAttr(tf.DataType_DT_INT64), "DstT": typeAttr(tf.DataType_DT_UINT64), "Truncate": boolAttr(false)}},
		pack(counter, tf.DataType_DT_UINT64, counter+"_low:output:0", counter+"_high:y:0"))
}

// philox is the number of the one algorithm that all stateless ops have on every device.
const philox = 1

func pack(name string, t tf.DataType, inputs ...string) *tf.NodeDef {
	return &tf.NodeDef{Name: name, Op: "Pack", Input: inputs, Attr: map[string]*tf.AttrValue{"N": intAttr(int64(len(inputs))), "T": typeAttr(t), "axis": intAttr(0)}}
}

// anyDraws tells whether one of the functions that a node calls draws. Clones draw what their originals do.
func (e *editor) anyDraws(n *tf.NodeDef) bool {
	for _, called := range calledFunctions(n) {
		if e.g.functions[called] == nil {
			called = called[:strings.LastIndex(called, clonedMark)]
		}
		if e.p.functionFacts(called).draws {
			return true
		}
	}
	return false
}

// keyNode makes a stateful random op, whose seeds are derived already, its stateless twin.
func (e *editor) keyNode(f *tf.FunctionDef, c *tf.NodeDef, counter, alg string) {
	to := twins[c.GetOp()]
	key := drawKey(c.Attr["seed"].GetI(), c.Attr["seed2"].GetI())
	name := indexArg + "_key_" + c.GetName()
	delete(c.Attr, "seed")
	delete(c.Attr, "seed2")
	if c.Op = to.op; to.op == multinomial {
		f.NodeDef = append(f.NodeDef, int64Const(name, int64(key>>1)), pack(name+"_seed", tf.DataType_DT_INT64, name+":output:0", indexArg))
		c.Input = withInput(c.Input, name+"_seed:output:0")
		c.Attr["Tseed"] = typeAttr(tf.DataType_DT_INT64)
		return
	}
	f.NodeDef = append(f.NodeDef, constNode(name, &tf.TensorProto{Dtype: tf.DataType_DT_UINT64, TensorShape: shapeOf(1), Uint64Val: []uint64{key}}))
	inputs := append([]string{c.Input[0]}, name+":output:0", counter+":output:0", alg+":output:0")
	c.Input = append(inputs, c.Input[1:]...)
	if to.dtype == "" {
		return
	}
	dtype, shape := c.Attr[to.dtype], c.Attr[to.shape]
	delete(c.Attr, to.dtype)
	delete(c.Attr, to.shape)
	c.Attr["dtype"], c.Attr["Tshape"] = dtype, shape
}

// withInput adds an input behind the others and before those that only wait.
func withInput(inputs []string, input string) []string {
	at := len(inputs)
	for at > 0 && strings.HasPrefix(inputs[at-1], "^") {
		at--
	}
	return append(append(append([]string(nil), inputs[:at]...), input), inputs[at:]...)
}
