package order

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Reorder returns the graph with its steps in another order. order names every step that TraitsOf lists, once, in the
// new sequence. Orders of earlier versions lack the steps in functions, which keep their places. Steps keep their names,
// and so their seeds and metrics. Only maps and filters move, and only within their section: the steps between two steps
// that cannot move. Maps that compute value by value may also move past batches.
//
// The new graph keeps the fingerprint of the old one, because its plan and jobs know the dataset by it.
//
// Reorder does not check that the elements stay the same: the caller decides that from the traits. It returns an error if a
// step would compute with a type that it does not support. It also returns an error if a function has a constant size that
// differs at the new place.
func Reorder(g *graph.Graph, order []string) (*graph.Graph, error) {
	c := newChain(g)
	if c == nil {
		return nil, errors.New("several steps of the dataset read the same node, so its steps have no single order")
	}
	o, err := c.reorder(order, "")
	if err != nil {
		return nil, err
	}
	return o.graph()
}

// reorder finds the new nodes and functions of an order. inside is the step in whose function the steps are, "" outside of
// functions.
func (c *chain) reorder(order []string, inside string) (*reordering, error) {
	own, bodies, err := c.divide(order, inside)
	if err != nil {
		return nil, err
	}
	o := &reordering{g: c.g, dependencies: dataflow.NewDependencyAnalysis(c.g), types: &retyping{c.g, map[string]*tf.FunctionDef{}}, nodes: map[string]*tf.NodeDef{}}
	for _, s := range c.steps {
		if c.fixed[s] {
			s.Rule = ops.Rule{Kind: ops.Undivided}
		}
		o.steps = append(o.steps, s)
	}
	if err := o.place(own); err != nil {
		return nil, err
	}
	if err := o.rewire(inside); err != nil {
		return nil, err
	}
	for _, s := range c.steps {
		if err := o.reorderBody(c.bodies[s], bodies[s], s, join(inside, s.Node.GetName())); err != nil {
			return nil, err
		}
	}
	return o, nil
}

type reordering struct {
	g            *graph.Graph
	dependencies *dataflow.DependencyAnalysis
	types        *retyping
	// steps are in the original order, placed in the new one.
	steps, placed []*graph.Step
	// batchesGained is the number of batches upstream of a step in the new order, minus that in the original order.
	// Example: 1 for a map that moves from before batch() to after it.
	batchesGained map[*graph.Step]int
	// nodes are the new nodes of the steps, by name; funcs the functions that they need.
	nodes map[string]*tf.NodeDef
	funcs []*tf.FunctionDef
}

func isMovable(s *graph.Step) bool {
	return s.Rule.Kind == ops.OneToOne || ops.FunctionAttr(s.Node.GetOp()) == "predicate" && s.Rule.Kind == ops.PerElement
}

// place finds the steps of an order by their names. A step that cannot move must keep its position, and a step that
// can move must stay in its section.
func (r *reordering) place(order []string) error {
	byName := map[string]*graph.Step{}
	for _, s := range r.steps {
		byName[s.Node.GetName()] = s
	}
	section := 0
	sections := map[string]int{}
	for _, s := range r.steps {
		if !isMovable(s) && !batches(s) && s.Rule.Kind != ops.PassThrough || r.g.Freezes(s.Node) || begins(s) {
			section++
		}
		sections[s.Node.GetName()] = section
	}
	for i, name := range order {
		s := byName[name]
		switch {
		case s == nil:
			return fmt.Errorf("the dataset has no step %s, or the order names it twice", nodedef.Quote(name))
		case i >= len(r.steps) || sections[name] != sections[r.steps[i].Node.GetName()], !isMovable(s) && !batches(s) && r.steps[i] != s:
			return fmt.Errorf("step %s (%s) cannot move to position %d: only maps and filters move, and not past other steps", nodedef.Quote(name), s.Node.GetOp(), i)
		}
		delete(byName, name)
		r.placed = append(r.placed, s)
	}
	if len(byName) > 0 {
		return fmt.Errorf("the order has %d steps, the dataset has %d", len(order), len(r.steps))
	}
	return r.countBatchesPassed()
}

// countBatchesPassed counts the batches that each step moved past. It refuses an order in which a step that is
// not a map moved past one.
func (r *reordering) countBatchesPassed() error {
	r.batchesGained = map[*graph.Step]int{}
	count := func(steps []*graph.Step, by int) {
		level := 0
		for _, s := range steps {
			if batches(s) {
				level++
			}
			r.batchesGained[s] += by * level
		}
	}
	count(r.placed, 1)
	count(r.steps, -1)
	for i, s := range r.placed {
		if r.batchesGained[s] != 0 && ops.FunctionAttr(s.Node.GetOp()) != "f" {
			return fmt.Errorf("step %s (%s) cannot move to position %d: only maps move past batches", nodedef.Quote(s.Node.GetName()), s.Node.GetOp(), i)
		}
	}
	return nil
}

// Refused is the error for a step that cannot run at its new position.
type Refused struct {
	Node, Op string
	Why      error
}

// Error names the step and the cause.
func (r *Refused) Error() string {
	return fmt.Sprintf("step %s (%s): %v", nodedef.Quote(r.Node), r.Op, r.Why)
}

// Unwrap returns the cause.
func (r *Refused) Unwrap() error { return r.Why }

// rewire connects each step to its new input, and sets its types and shapes accordingly. inside is for errors.
func (r *reordering) rewire(inside string) error {
	if len(r.placed) == 0 {
		return nil
	}
	var types []tf.DataType
	var shapes []*tf.TensorShapeProto
	input := ""
	// ends has, for the last step of each branch in the registered order, the one that is last now.
	ends := map[string]string{}
	for i, s := range r.placed {
		if registered := r.steps[i]; begins(registered) {
			source := registered.In[0].Node
			types, shapes = r.g.OutputTypes(source), r.g.OutputShapes(source)
			input = registered.Node.GetInput()[registered.InAt[0]]
		}
		n := nodedef.Copy(s.Node)
		r.nodes[n.GetName()] = n
		ends[r.steps[i].Node.GetName()] = n.GetName()
		for branch, in := range s.In {
			if end := ends[in.Node.GetName()]; joins(s) && end != "" {
				n.Input[s.InAt[branch]] = end
			}
		}
		if !joins(s) {
			n.Input[s.InAt[0]] = input
		}
		input = n.GetName()
		switch {
		case joins(s):
			types, shapes = r.g.OutputTypes(s.Node), r.g.OutputShapes(s.Node)
		case isMovable(s):
			var err error
			if types, shapes, err = r.move(n, s, types, shapes); err != nil {
				return &Refused{join(inside, n.GetName()), n.GetOp(), err}
			}
		case s.Rule.Kind == ops.PassThrough:
		case batches(s):
			shapes = r.batchedShapes(s, shapes)
		case !slices.Equal(types, r.g.OutputTypes(s.In[0].Node)):
			return &Refused{join(inside, n.GetName()), n.GetOp(), errors.New("its input would have other types than in the registered order")}
		default:
			types, shapes = r.g.OutputTypes(s.Node), r.g.OutputShapes(s.Node)
		}
		// At the end of a section the elements equal those of the original order, so their types and shapes do too.
		if r.sectionEnds(i) {
			end := r.steps[i].Node
			if !slices.Equal(types, r.g.OutputTypes(end)) {
				return &Refused{join(inside, n.GetName()), n.GetOp(), errors.New("after it, elements would have other types than in the registered order")}
			}
			if err := sameOutputShapes(shapes, r.g.OutputShapes(end)); err != nil {
				return &Refused{join(inside, n.GetName()), n.GetOp(), err}
			}
			shapes = r.g.OutputShapes(end)
		}
		if _, ok := n.Attr["output_types"]; ok {
			n.Attr["output_types"], n.Attr["output_shapes"] = nodedef.TypesAttr(types), nodedef.ShapesAttr(shapes)
		}
	}
	return nil
}

// sectionEnds returns whether a section ends at a position: both orders have the same steps up to there, and
// the next step cannot move.
func (r *reordering) sectionEnds(place int) bool {
	if place+1 == len(r.placed) || begins(r.steps[place+1]) {
		return true
	}
	next := r.placed[place+1]
	if isMovable(next) || next.Rule.Kind == ops.PassThrough {
		return false
	}
	before := map[*graph.Step]bool{}
	for _, s := range r.steps[:place+1] {
		before[s] = true
	}
	return !slices.ContainsFunc(r.placed[:place+1], func(s *graph.Step) bool { return !before[s] })
}

// batchedShapes returns the shapes of batches of elements.
func (r *reordering) batchedShapes(batch *graph.Step, shapes []*tf.TensorShapeProto) (out []*tf.TensorShapeProto) {
	rows := &tf.TensorShapeProto_Dim{Size: -1}
	if first := r.g.OutputShapes(batch.Node)[0].GetDim(); len(first) > 0 {
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

// move fits the function of a step to the types and shapes of its new input, and returns those of its output.
func (r *reordering) move(n *tf.NodeDef, s *graph.Step, types []tf.DataType, shapes []*tf.TensorShapeProto) ([]tf.DataType, []*tf.TensorShapeProto, error) {
	key := ops.FunctionAttr(s.Node.GetOp())
	name := s.Node.GetAttr()[key].GetFunc().GetName()
	before, stated := r.g.OutputTypes(s.In[0].Node), r.g.OutputShapes(s.In[0].Node)
	unmoved := slices.Equal(types, before) && slices.EqualFunc(shapes, stated, sameShape)
	if unmoved {
		if key == "predicate" {
			return types, shapes, nil
		}
		return r.g.OutputTypes(s.Node), r.g.OutputShapes(s.Node), nil
	}
	deps := r.dependencies.Of(name)
	if deps == nil || len(types) != len(before) || len(deps.Effects) < len(types) || key == "f" && len(deps.Same) != len(types) {
		return nil, nil, errors.New("it changes the number of components, or its work is not in its function")
	}
	f := r.g.Function(name)
	given := slices.Clone(types)
	for _, arg := range f.GetSignature().GetInputArg()[len(types):] {
		given = append(given, arg.GetType())
	}
	fitted, err := r.types.of(name, given)
	if err != nil {
		return nil, nil, err
	}
	after := slices.Clone(shapes)
	for i := range types {
		reads, alone := reads(deps, key, i)
		if reads && !refines(shapes[i], stated[i]) && !(alone && sameOnShapes(r.g, name, i, shapes[i], stated[i], r.batchesGained[s])) {
			return nil, nil, fmt.Errorf("its function was traced for component %d of shape %s, not of shape %s", i, shapeText(stated[i]), shapeText(shapes[i]))
		}
		if key == "f" {
			after[i] = r.shapeAfter(s, name, deps, i, shapes)
		}
	}
	if fitted = r.withShapes(fitted, shapes); fitted.GetSignature().GetName() != name {
		nodedef.RenameCalls(n, name, fitted.GetSignature().GetName())
	}
	if key == "predicate" {
		return types, shapes, nil
	}
	results := make([]tf.DataType, 0, len(types))
	for _, out := range fitted.GetSignature().GetOutputArg() {
		results = append(results, out.GetType())
	}
	return results, after, nil
}

// reads returns whether a step's function reads a component, and whether only the result for that component depends
// on it.
func reads(p *dataflow.Dependencies, key string, component int) (reads, alone bool) {
	reads, alone = p.Effects[component], !p.Effects[component]
	for result, from := range p.From {
		if !from[component] || key == "f" && p.Same[result] == result {
			continue
		}
		reads = true
		alone = alone && key == "f" && result == component
	}
	return reads, alone
}

// graph returns the new graph, with the functions that it needs.
func (r *reordering) graph() (*graph.Graph, error) {
	def := &tf.GraphDef{Versions: r.g.Def().GetVersions(), Library: &tf.FunctionDefLibrary{}}
	for _, n := range r.g.Def().GetNode() {
		switch moved := r.nodes[n.GetName()]; {
		case moved != nil:
			def.Node = append(def.Node, moved)
		case n == r.g.Retval() && len(r.placed) > 0:
			c := nodedef.Copy(n)
			c.Input[0] = r.placed[len(r.placed)-1].Node.GetName()
			def.Node = append(def.Node, c)
		default:
			def.Node = append(def.Node, n)
		}
	}
	def.Library.Function = append(def.Library.Function, r.g.Def().GetLibrary().GetFunction()...)
	known := map[string]bool{}
	for _, f := range def.Library.Function {
		known[f.GetSignature().GetName()] = true
	}
	added := slices.Clone(r.funcs)
	for _, name := range slices.Sorted(maps.Keys(r.types.funcs)) {
		added = append(added, r.types.funcs[name])
	}
	for _, f := range added {
		if name := f.GetSignature().GetName(); !known[name] {
			known[name] = true
			def.Library.Function = append(def.Library.Function, f)
		}
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(def)
	if err != nil {
		return nil, err
	}
	return r.g.ParseVariant(data)
}
