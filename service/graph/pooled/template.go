package pooled

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Template is the common graph of streams that differ only in arguments.
type Template struct {
	ops       *ops.Set
	def       *tf.GraphDef
	nodes     map[string]*tf.NodeDef
	functions map[string]*tf.FunctionDef
	arguments []argument
	// needs are the arguments that each function gets.
	needs map[string]map[int]bool
	// resources are the nodes of tables and variables. captured are those that return a handle to the dataset. handles are
	// the names of these handles in the stream's function.
	resources map[string]bool
	captured  []string
	handles   map[string]string
	options   *tf.Options
	defaults  defaults
	// notInline is why the steps cannot run inline; nil if they can.
	notInline error
}

// NewTemplate makes the template of a stream's graph. An error is the reason why the stream needs an iterator of its own.
func NewTemplate(serialised []byte) (*Template, error) {
	registry, err := ops.Registry()
	if err != nil {
		return nil, err
	}
	t := &Template{ops: registry, def: new(tf.GraphDef), nodes: map[string]*tf.NodeDef{}, functions: map[string]*tf.FunctionDef{}}
	if err := proto.Unmarshal(serialised, t.def); err != nil {
		return nil, fmt.Errorf("read a stream's graph: %w", err)
	}
	for _, n := range t.def.GetNode() {
		t.nodes[n.GetName()] = n
	}
	for _, f := range t.def.GetLibrary().GetFunction() {
		t.functions[f.GetSignature().GetName()] = f
	}
	if err := t.findResources(); err != nil {
		return nil, err
	}
	if err := t.whyPrivate(); err != nil {
		return nil, err
	}
	t.options = t.optionsAt(inputNode(t.retval(), 0))
	if err := checkOptions(t.options); err != nil {
		return nil, err
	}
	t.defaults = defaultsOf(t.options)
	t.findArguments()
	if err := t.passArguments(); err != nil {
		return nil, err
	}
	// Errors of the conversion are reasons too, so it is tried here.
	if _, err := t.streamFunction(Names{}); err != nil {
		return nil, err
	}
	t.notInline = t.whyNotInline()
	return t, nil
}

func (t *Template) retval() *tf.NodeDef {
	for _, n := range t.def.GetNode() {
		if n.GetOp() == "_Retval" {
			return n
		}
	}
	return nil
}

const (
	streamName    = "pecan_stream"
	argumentsName = "pecan_arguments"
)

// Names are the names of what a pooled graph uses outside of it.
type Names struct {
	// Arguments is the handle under which PecanPull reads the arguments of each stream. A number without meaning comes
	// first, because PecanPull gives at least one tensor. The arguments follow in the order of Separate.
	Arguments int64
	// Elements is the handle under which the stream's own PecanPull reads.
	Elements int64
	// Meters is the name under which the meters count.
	Meters string
	// Inline is set if the steps run inline. Set it only if WhyNotInline returns nil.
	Inline bool
}

// Graph returns the pooled graph.
func (t *Template) Graph(names Names) ([]byte, error) {
	stream, err := t.streamFunction(names)
	if err != nil {
		return nil, err
	}
	out := &tf.GraphDef{Versions: t.def.GetVersions(), Library: &tf.FunctionDefLibrary{Function: []*tf.FunctionDef{t.pullFunction(names.Arguments), stream}}}
	for _, f := range t.def.GetLibrary().GetFunction() {
		out.Library.Function = append(out.Library.Function, pullFrom(t.withArguments(f), names.Elements))
	}
	types, shapes := t.argumentTypes()
	root := t.nodes[inputNode(t.retval(), 0)]
	elements := func() map[string]*tf.AttrValue {
		return map[string]*tf.AttrValue{"output_types": root.GetAttr()["output_types"], "output_shapes": root.GetAttr()["output_shapes"]}
	}
	number := []tf.DataType{tf.DataType_DT_INT64}
	pull := &tf.NodeDef{Name: argumentsName, Op: "MapDataset", Input: []string{argumentsName + "/range"}, Attr: nodedef.DatasetAttrs(types, shapes)}
	pull.Attr["f"], pull.Attr[capturedTypes] = nodedef.FuncAttr(argumentsName), nodedef.TypesAttr(nil)
	pull.Attr["use_inter_op_parallelism"], pull.Attr["preserve_cardinality"] = nodedef.BoolAttr(false), nodedef.BoolAttr(false)
	flat := &tf.NodeDef{Name: streamName, Op: "FlatMapDataset", Input: []string{argumentsName}, Attr: elements()}
	handles := make([]tf.DataType, len(t.captured))
	for i := range handles {
		handles[i] = tf.DataType_DT_RESOURCE
	}
	flat.Input = append(flat.Input, t.captured...)
	flat.Attr["f"], flat.Attr[capturedTypes] = nodedef.FuncAttr(streamName), nodedef.TypesAttr(handles)
	options := &tf.NodeDef{Name: "pecan_options", Op: "OptionsDataset", Input: []string{streamName}, Attr: elements()}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.options)
	if err != nil {
		return nil, err
	}
	options.Attr["serialized_options"] = nodedef.BytesAttr(string(raw))
	retval := nodedef.Copy(t.retval())
	retval.Input = []string{options.GetName()}
	out.Node = append(t.resourceNodes(),
		nodedef.Int64Const(argumentsName+"/start", 0), nodedef.Int64Const(argumentsName+"/stop", 1<<62), nodedef.Int64Const(argumentsName+"/step", 1),
		&tf.NodeDef{Name: argumentsName + "/range", Op: "RangeDataset", Input: []string{argumentsName + "/start", argumentsName + "/stop", argumentsName + "/step"},
			Attr: nodedef.DatasetAttrs(number, []*tf.TensorShapeProto{nodedef.Shape()})},
		pull, flat, options, retval,
	)
	return proto.MarshalOptions{Deterministic: true}.Marshal(out)
}

// argumentTypes returns the types and shapes of what PecanPull gives.
func (t *Template) argumentTypes() (types []tf.DataType, shapes []*tf.TensorShapeProto) {
	types, shapes = append(types, tf.DataType_DT_INT64), append(shapes, nodedef.Shape())
	for _, a := range t.arguments {
		types, shapes = append(types, a.dtype), append(shapes, &tf.TensorShapeProto{UnknownRank: true})
	}
	return types, shapes
}

// ownFunction returns the attributes of a function that belongs to tf.data.
func ownFunction() map[string]*tf.AttrValue {
	return map[string]*tf.AttrValue{"_tf_data_function": nodedef.BoolAttr(true)}
}

// pullFunction returns the function that reads the arguments of the next stream.
func (t *Template) pullFunction(source int64) *tf.FunctionDef {
	types, shapes := t.argumentTypes()
	pull := &tf.NodeDef{Name: "pull", Op: pullOp, Attr: nodedef.DatasetAttrs(types, shapes)}
	pull.Attr[pullSource] = nodedef.IntAttr(source)
	f := &tf.FunctionDef{
		Signature: &tf.OpDef{Name: argumentsName, IsStateful: true, InputArg: []*tf.OpDef_ArgDef{{Name: "index", Type: tf.DataType_DT_INT64}}, ControlOutput: []string{"pull"}},
		NodeDef:   []*tf.NodeDef{pull}, Ret: map[string]string{}, ControlRet: map[string]string{"pull": "pull"}, Attr: ownFunction(),
	}
	for i, dtype := range types {
		name := fmt.Sprintf("component_%d", i)
		f.Signature.OutputArg = append(f.Signature.OutputArg, &tf.OpDef_ArgDef{Name: name, Type: dtype})
		f.Ret[name] = fmt.Sprintf("pull:components:%d", i)
	}
	return f
}

// pullFrom returns a function whose PecanPull reads under a handle.
func pullFrom(f *tf.FunctionDef, handle int64) *tf.FunctionDef {
	isPull := func(n *tf.NodeDef) bool { return n.GetOp() == pullOp }
	if !slices.ContainsFunc(f.GetNodeDef(), isPull) {
		return f
	}
	out := nodedef.CopySignature(f)
	for _, n := range f.GetNodeDef() {
		if isPull(n) {
			n = nodedef.Copy(n)
			n.Attr[pullSource] = nodedef.IntAttr(handle)
		}
		out.NodeDef = append(out.NodeDef, n)
	}
	return out
}

// streamFunction returns the function that makes the dataset of a stream from its arguments. It has the nodes of the
// stream's graph.
func (t *Template) streamFunction(names Names) (*tf.FunctionDef, error) {
	f := &tf.FunctionDef{
		Signature: &tf.OpDef{Name: streamName, IsStateful: true, OutputArg: []*tf.OpDef_ArgDef{{Name: "elements", Type: tf.DataType_DT_VARIANT}},
			InputArg: []*tf.OpDef_ArgDef{{Name: "pecan_stream_number", Type: tf.DataType_DT_INT64}}},
		Ret: map[string]string{}, Attr: ownFunction(),
	}
	s := &streamNodes{t: t, lifted: map[string]string{}, handles: map[string]string{}}
	for i, a := range t.arguments {
		f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: argumentName(i), Type: a.dtype})
		if a.function == "" {
			s.lifted[a.node] = argumentName(i)
		}
	}
	for _, name := range t.captured {
		f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: t.handles[name], Type: tf.DataType_DT_RESOURCE})
	}
	if err := s.findHandles(); err != nil {
		return nil, err
	}
	for _, n := range t.def.GetNode() {
		if s.lifted[n.GetName()] != "" || n.GetOp() == "_Retval" || n.GetOp() == "OptionsDataset" || t.resources[n.GetName()] || t.onlyForResources(n.GetName()) {
			continue
		}
		nodes, err := s.convert(n, names)
		if err != nil {
			return nil, err
		}
		f.NodeDef = append(f.NodeDef, nodes...)
	}
	result, err := s.input(t.retval().GetInput()[0])
	f.Ret["elements"] = result
	return f, err
}

// streamNodes converts the nodes of a graph to nodes of a function.
type streamNodes struct {
	t *Template
	// lifted are the names of the arguments, by the constants that they replace.
	lifted map[string]string
	// handles are the ops that replace the handles of absent resources, by node.
	handles map[string]string
}

// findHandles finds the handles of the trainer's generators and caches. They are absent on a worker, and a nested
// dataset makes its own for a dummy.
func (s *streamNodes) findHandles() error {
	for _, n := range s.t.def.GetNode() {
		if err := s.t.fileCache(n); err != nil {
			return err
		}
		for i := range n.GetInput() {
			name := inputNode(n, i)
			if nodedef.Tensor(s.t.nodes[name]).GetDtype() != tf.DataType_DT_RESOURCE {
				continue
			}
			switch n.GetOp() {
			case "ShuffleDatasetV2", "ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2", "RandomDatasetV2":
				s.handles[name] = "DummySeedGenerator"
			case "CacheDatasetV2":
				s.handles[name] = "DummyMemoryCache"
			default:
				return fmt.Errorf("node %s has a resource", nodedef.Quote(n.GetName()))
			}
		}
	}
	return nil
}

// input translates an input of a node in the graph to the input of a node in the function.
func (s *streamNodes) input(input string) (string, error) {
	name, index, control := nodedef.SplitInput(input)
	n := s.t.nodes[name]
	switch {
	case n.GetOp() == "OptionsDataset":
		return s.input(n.GetInput()[0])
	case control:
		return input, nil
	case s.lifted[name] != "":
		return s.lifted[name], nil
	case s.t.handles[name] != "":
		return s.t.handles[name], nil
	case s.handles[name] != "":
		return name + ":handle:0", nil
	}
	outputs := s.t.ops.Def(n.GetOp()).GetOutputArg()
	if len(outputs) != 1 {
		return "", fmt.Errorf("node %s has %d results", nodedef.Quote(name), len(outputs))
	}
	if index == "" {
		index = "0"
	}
	return name + ":" + outputs[0].GetName() + ":" + index, nil
}

// convert returns the nodes of the function for a node of the graph.
func (s *streamNodes) convert(n *tf.NodeDef, names Names) ([]*tf.NodeDef, error) {
	if op := s.handles[n.GetName()]; op != "" {
		return []*tf.NodeDef{{Name: n.GetName(), Op: op}}, nil
	}
	c := nodedef.Copy(n)
	c.Attr = maps.Clone(n.GetAttr())
	if c.Attr == nil {
		c.Attr = map[string]*tf.AttrValue{}
	}
	c.Input = slices.DeleteFunc(s.t.withoutResources(c.Input), func(input string) bool {
		name, _, control := nodedef.SplitInput(input)
		return control && s.lifted[name] != ""
	})
	for i, input := range c.Input {
		translated, err := s.input(input)
		if err != nil {
			return nil, err
		}
		c.Input[i] = translated
	}
	if c.GetName() == metersNode {
		c.Attr["shared_name"] = nodedef.BytesAttr(names.Meters)
	}
	s.t.addPassed(c)
	if names.Inline {
		s.t.runInline(c)
		return []*tf.NodeDef{c}, nil
	}
	return append(s.t.applyDefaults(c), c), nil
}
