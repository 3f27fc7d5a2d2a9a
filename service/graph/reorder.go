package graph

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Reorder gives a graph whose steps stand in another order: the names of all steps that TraitsOf lists, the one next to the source first.
// Steps keep their names, and with them their seeds and figures. Only maps and filters move, and only between steps that do not; maps that
// compute value by value pass batches as well.
//
// The new graph has the fingerprint of the old one: it is the same dataset, which its plan is for and its jobs know it by.
//
// Whether the elements are the same in the new order is not looked at here: that is for who asks, by the steps' traits. It is an error
// where a step would have to compute with a type that it was not written for, or stand where a size differs that its function holds as
// a constant.
func Reorder(g *Graph, order []string) (*Graph, error) {
	root, isTree := g.tree()
	if !isTree {
		return nil, errors.New("the dataset reads one of its parts in two places")
	}
	o := &reordering{g: g, passages: newPassages(g), types: &retyping{g, map[string]*tf.FunctionDef{}}, nodes: map[string]*tf.NodeDef{}}
	held := g.held(root)
	for s := root; len(s.in) == 1; s = s.in[0] {
		if held[s] {
			s.rule = rule{kind: stuck}
		}
		o.steps = append(o.steps, s)
	}
	slices.Reverse(o.steps)
	if err := o.place(order); err != nil {
		return nil, err
	}
	if err := o.rewire(); err != nil {
		return nil, err
	}
	return o.graph()
}

type reordering struct {
	g        *Graph
	passages *passages
	types    *retyping
	// steps are in the original order, placed in the new one.
	steps, placed []*step
	// rows is how many batches more than in the original order each step has before it.
	rows  map[*step]int
	nodes map[string]*tf.NodeDef
	funcs []*tf.FunctionDef
}

func movable(s *step) bool {
	return s.rule.kind == oneToOne || functionOf(s.node.GetOp()) == "predicate" && s.rule.kind == perElement
}

// place looks the names up. What does not move stands where it stood, and nothing passes it.
func (o *reordering) place(order []string) error {
	byName := map[string]*step{}
	for _, s := range o.steps {
		byName[s.node.GetName()] = s
	}
	section := 0
	sections := map[string]int{}
	for _, s := range o.steps {
		if !movable(s) && !batches(s) && s.rule.kind != pass || o.g.isMark(s.node) {
			section++
		}
		sections[s.node.GetName()] = section
	}
	for i, name := range order {
		s := byName[name]
		switch {
		case s == nil:
			return fmt.Errorf("there is no step %s, or it is named twice", quoteName(name))
		case i >= len(o.steps) || sections[name] != sections[o.steps[i].node.GetName()], !movable(s) && !batches(s) && o.steps[i] != s:
			return fmt.Errorf("step %s (%s) may not stand at place %d: only maps and filters move, and not past others", quoteName(name), s.node.GetOp(), i)
		}
		delete(byName, name)
		o.placed = append(o.placed, s)
	}
	if len(byName) > 0 {
		return fmt.Errorf("the order has %d steps, the dataset %d", len(order), len(o.steps))
	}
	return o.placeBatches()
}

// placeBatches finds the steps that have passed batches: these must be maps.
func (o *reordering) placeBatches() error {
	o.rows = map[*step]int{}
	count := func(steps []*step, by int) {
		level := 0
		for _, s := range steps {
			if batches(s) {
				level++
			}
			o.rows[s] += by * level
		}
	}
	count(o.placed, 1)
	count(o.steps, -1)
	for i, s := range o.placed {
		if o.rows[s] != 0 && functionOf(s.node.GetOp()) != "f" {
			return fmt.Errorf("step %s (%s) may not stand at place %d: of all steps only maps pass batches", quoteName(s.node.GetName()), s.node.GetOp(), i)
		}
	}
	return nil
}

// Refused says which step cannot stand where an order puts it, and why.
type Refused struct {
	Node, Op string
	Why      error
}

func (r *Refused) Error() string {
	return fmt.Sprintf("step %s (%s): %v", quoteName(r.Node), r.Op, r.Why)
}

func (r *Refused) Unwrap() error { return r.Why }

// rewire gives each step its new input, and the types and shapes that come from there.
func (o *reordering) rewire() error {
	if len(o.placed) == 0 {
		return nil
	}
	below := o.steps[0].in[0].node
	types, shapes := o.g.outputTypes(below), o.g.outputShapes(below)
	input := o.steps[0].node.GetInput()[o.steps[0].inAt[0]]
	for i, s := range o.placed {
		n := copyNode(s.node)
		o.nodes[n.GetName()] = n
		n.Input[s.inAt[0]] = input
		input = n.GetName()
		switch {
		case movable(s):
			var err error
			if types, shapes, err = o.move(n, s, types, shapes); err != nil {
				return &Refused{n.GetName(), n.GetOp(), err}
			}
		case s.rule.kind == pass:
		case batches(s):
			shapes = o.batched(s, shapes)
		case !slices.Equal(types, o.g.outputTypes(s.in[0].node)):
			return &Refused{n.GetName(), n.GetOp(), errors.New("it would be given other types than it was written for")}
		default:
			types, shapes = o.g.outputTypes(s.node), o.g.outputShapes(s.node)
		}
		// Where all that moved is done, elements are what they were in the original order, and so are their shapes.
		if o.ends(i) {
			end := o.steps[i].node
			if !slices.Equal(types, o.g.outputTypes(end)) {
				return &Refused{n.GetName(), n.GetOp(), errors.New("it would end a section with other types")}
			}
			if err := sameEnd(shapes, o.g.outputShapes(end)); err != nil {
				return &Refused{n.GetName(), n.GetOp(), err}
			}
			shapes = o.g.outputShapes(end)
		}
		if _, ok := n.Attr["output_types"]; ok {
			n.Attr["output_types"], n.Attr["output_shapes"] = typesAttr(types), shapesAttr(shapes)
		}
	}
	return nil
}

// ends tells whether the steps up to a place are the same ones in both orders, and a step that does not move comes next.
func (o *reordering) ends(place int) bool {
	if place+1 == len(o.placed) {
		return true
	}
	next := o.placed[place+1]
	if movable(next) || next.rule.kind == pass {
		return false
	}
	before := map[*step]bool{}
	for _, s := range o.steps[:place+1] {
		before[s] = true
	}
	return !slices.ContainsFunc(o.placed[:place+1], func(s *step) bool { return !before[s] })
}

// batched are the shapes of batches of elements.
func (o *reordering) batched(batch *step, shapes []*tf.TensorShapeProto) (out []*tf.TensorShapeProto) {
	rows := &tf.TensorShapeProto_Dim{Size: -1}
	if first := o.g.outputShapes(batch.node)[0].GetDim(); len(first) > 0 {
		rows = first[0]
	}
	for _, shape := range shapes {
		if !shape.GetUnknownRank() {
			shape = &tf.TensorShapeProto{Dim: append([]*tf.TensorShapeProto_Dim{rows}, shape.GetDim()...)}
		}
		out = append(out, shape)
	}
	return out
}

// sameEnd holds the shapes at the end of a section against those that its elements had there.
func sameEnd(shapes, stated []*tf.TensorShapeProto) error {
	for c := range min(len(shapes), len(stated)) {
		if contradict(shapes[c], stated[c]) {
			return fmt.Errorf("it would end a section with component %d of shape %s, not %s", c, shapeWords(shapes[c]), shapeWords(stated[c]))
		}
	}
	return nil
}

// contradict tells whether no tensor has both shapes. Steps that give an element a size of their own do not change places unseen.
func contradict(a, b *tf.TensorShapeProto) bool {
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

// move fits the function of a step to what it is given, and gives what comes out.
func (o *reordering) move(n *tf.NodeDef, s *step, types []tf.DataType, shapes []*tf.TensorShapeProto) ([]tf.DataType, []*tf.TensorShapeProto, error) {
	key := functionOf(s.node.GetOp())
	name := s.node.GetAttr()[key].GetFunc().GetName()
	before, stated := o.g.outputTypes(s.in[0].node), o.g.outputShapes(s.in[0].node)
	unmoved := slices.Equal(types, before) && slices.EqualFunc(shapes, stated, sameShape)
	if unmoved {
		if key == "predicate" {
			return types, shapes, nil
		}
		return o.g.outputTypes(s.node), o.g.outputShapes(s.node), nil
	}
	passage := o.passages.of(name)
	if passage == nil || len(types) != len(before) || len(passage.effects) < len(types) || key == "f" && len(passage.same) != len(types) {
		return nil, nil, errors.New("it changes the number of components, or what it does is not in its function")
	}
	f := o.g.functions[name]
	given := slices.Clone(types)
	for _, arg := range f.GetSignature().GetInputArg()[len(types):] {
		given = append(given, arg.GetType())
	}
	fitted, err := o.types.of(name, given)
	if err != nil {
		return nil, nil, err
	}
	behind := slices.Clone(shapes)
	for i := range types {
		reads, alone := passage.reads(key, i)
		if reads && !refines(shapes[i], stated[i]) && !(alone && o.g.fits(name, i, shapes[i], stated[i], o.rows[s])) {
			return nil, nil, fmt.Errorf("its function was traced for component %d of shape %s, and would be given %s", i, shapeWords(stated[i]), shapeWords(shapes[i]))
		}
		if key == "f" {
			behind[i] = o.behind(s, name, passage, i, shapes)
		}
	}
	if fitted = o.withShapes(fitted, shapes); fitted.GetSignature().GetName() != name {
		renameCalls(n, name, fitted.GetSignature().GetName())
	}
	if key == "predicate" {
		return types, shapes, nil
	}
	results := make([]tf.DataType, 0, len(types))
	for _, out := range fitted.GetSignature().GetOutputArg() {
		results = append(results, out.GetType())
	}
	return results, behind, nil
}

// fits tells whether a map does the same to a component of other sizes than it was traced for, that stands behind so many more batches.
func (g *Graph) fits(function string, component int, shape, traced *tf.TensorShapeProto, batches int) bool {
	change, there := g.changeOf(function, component, traced), g.changeOf(function, component, shape)
	switch {
	case batches > 0 && len(shape.GetDim()) >= batches:
		rows := &tf.TensorShapeProto{Dim: shape.GetDim()[batches:]}
		return sameInBatches(change, there, batches) && !sizesDiffer(rows, traced, change.Looks)
	case batches < 0 && len(traced.GetDim()) >= -batches:
		rows := &tf.TensorShapeProto{Dim: traced.GetDim()[-batches:]}
		return sameInBatches(there, change, -batches) && !sizesDiffer(shape, rows, there.Looks)
	case batches != 0:
		return false
	}
	return change.Opaque == "" && there.Opaque == "" && !sizesDiffer(shape, traced, change.Looks)
}

// behind is the shape of a component behind a map.
func (o *reordering) behind(s *step, function string, passage *passage, component int, shapes []*tf.TensorShapeProto) *tf.TensorShapeProto {
	if same := passage.same[component]; same >= 0 && same < len(shapes) {
		return shapes[same]
	}
	if passage.from[component][component] {
		if change, shape := o.g.changeBehind(function, component, shapes[component]); change.Opaque == "" {
			return shape
		}
	}
	return o.g.outputShapes(s.node)[component]
}

// reads tells whether a step's function looks at a component, and whether only the component's own result does.
func (p *passage) reads(key string, component int) (reads, alone bool) {
	reads, alone = p.effects[component], !p.effects[component]
	for result, from := range p.from {
		if !from[component] || key == "f" && p.same[result] == result {
			continue
		}
		reads = true
		alone = alone && key == "f" && result == component
	}
	return reads, alone
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
	c := copySignature(f)
	c.NodeDef = o.loosened(f)
	c.Signature = renamed(f.GetSignature(), f.GetSignature().GetName()+clonedMark+shortHash(append(words, "shapes")...))
	c.ArgAttr = map[uint32]*tf.FunctionDef_ArgAttrs{}
	for i, attrs := range f.GetArgAttr() {
		c.ArgAttr[i] = attrs
		if int(i) < len(shapes) {
			c.ArgAttr[i] = &tf.FunctionDef_ArgAttrs{Attr: map[string]*tf.AttrValue{"_output_shapes": shapesAttr(shapes[i : i+1])}}
		}
	}
	o.funcs = append(o.funcs, c)
	return c
}

// loosened are the nodes of a function, without the shapes that calls in it had in the original order.
func (o *reordering) loosened(f *tf.FunctionDef) (nodes []*tf.NodeDef) {
	for _, original := range f.GetNodeDef() {
		called := calledFunctions(original)
		if len(called) == 0 {
			nodes = append(nodes, original)
			continue
		}
		n := copyNode(original)
		delete(n.Attr, "_output_shapes")
		if shapes := n.Attr["output_shapes"].GetList().GetShape(); len(shapes) > 0 {
			n.Attr["output_shapes"] = shapesAttr(slices.Repeat([]*tf.TensorShapeProto{{UnknownRank: true}}, len(shapes)))
		}
		for _, name := range called {
			renameCalls(n, name, o.loose(name))
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// loose gives a copy of a function that says nothing of its arguments' shapes.
func (o *reordering) loose(name string) string {
	f := o.g.functions[name]
	if f == nil {
		f = o.types.funcs[name]
	}
	clone := name + clonedMark + "loose"
	if slices.ContainsFunc(o.funcs, func(f *tf.FunctionDef) bool { return f.GetSignature().GetName() == clone }) {
		return clone
	}
	c := copySignature(f)
	c.Signature = renamed(f.GetSignature(), clone)
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
func sizesDiffer(a, b *tf.TensorShapeProto, at Dims) bool {
	if a.GetUnknownRank() || b.GetUnknownRank() || len(a.GetDim()) != len(b.GetDim()) {
		return true
	}
	for i, d := range b.GetDim() {
		if at&dimSet(i) != 0 && a.GetDim()[i].GetSize() != d.GetSize() {
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

// graph writes the new graph, with the functions that it needs.
func (o *reordering) graph() (*Graph, error) {
	def := &tf.GraphDef{Versions: o.g.def.GetVersions(), Library: &tf.FunctionDefLibrary{}}
	for _, n := range o.g.def.GetNode() {
		switch moved := o.nodes[n.GetName()]; {
		case moved != nil:
			def.Node = append(def.Node, moved)
		case n == o.g.retval && len(o.placed) > 0:
			c := copyNode(n)
			c.Input[0] = o.placed[len(o.placed)-1].node.GetName()
			def.Node = append(def.Node, c)
		default:
			def.Node = append(def.Node, n)
		}
	}
	def.Library.Function = append(def.Library.Function, o.g.def.GetLibrary().GetFunction()...)
	known := map[string]bool{}
	for _, f := range def.Library.Function {
		known[f.GetSignature().GetName()] = true
	}
	made := slices.Clone(o.funcs)
	for _, name := range slices.Sorted(maps.Keys(o.types.funcs)) {
		made = append(made, o.types.funcs[name])
	}
	for _, f := range made {
		if name := f.GetSignature().GetName(); !known[name] {
			known[name] = true
			def.Library.Function = append(def.Library.Function, f)
		}
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(def)
	if err != nil {
		return nil, err
	}
	ordered, err := Parse(data, o.g.limits)
	if err != nil {
		return nil, err
	}
	ordered.fingerprint = o.g.fingerprint
	return ordered, nil
}

// Serialized gives the graph as a GraphDef, equal bytes for equal graphs.
func (g *Graph) Serialized() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(g.def)
}
