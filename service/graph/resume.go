package graph

import (
	"fmt"
	"math"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// A stream that begins at index i leaves its first i elements out. They are left out as low as that can be done: skip(i)
// above a map gives what the map gives above skip(i), and above a batch of b what the batch gives above skip(i·b). So the
// skip sinks from the root towards the cut, and rests where the elements before have a say in those that come, or where it is not
// known how many of them there were. What it sank through is not run again.

// MayMove tells whether a stream that somebody has read may go on with another worker. Mode at-most-once computes nothing again, so
// there it may only where it can begin at any index with nothing run again, and gives there what it would have given.
func MayMove(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE ||
		Repeats(plan) && plan.GetResume().GetStrategy() == pecanv1.Resume_SEEK
}

// Repeats tells whether an index says which element it is: another run of a stream gives the same ones in the same order.
func Repeats(plan *pecanv1.Plan) bool {
	return plan.GetDeterminism() != pecanv1.DeterminismClass_DETERMINISM_CLASS_C
}

// BeginsAnew tells whether a stream that is run again is sent from its start: where an index does not say which element it is, and
// none may be left out.
func BeginsAnew(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return !Repeats(plan) && options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE
}

// sinks tells whether a step gives the same elements from some index on if those before are left out of its inputs: n of its
// own for each factor·n of theirs.
func (p *planner) sinks(s *step, ordered bool) (factor int64, ok bool) {
	if f := p.facts(s); f.caches || f.stateful || f.writes || ordered && (f.draws || f.seeded || f.wild) && !p.keyed[s.node.GetName()] {
		// What a function counts, or draws one after another, depends on its calls for the elements before.
		return 0, false
	}
	switch s.rule.kind {
	case oneToOne, pass, zipped, asserted:
		return 1, len(s.in) > 0
	case batched:
		size, ok := p.g.inputInt(s.node, "batch_size")
		return size, ok && size > 0
	case windowed:
		shift, ok := p.g.inputInt(s.node, "shift")
		return shift, ok && shift > 0
	case position:
		if s.node.GetOp() == "ShardDataset" {
			shards, ok := p.g.inputInt(s.node, "num_shards")
			return shards, ok && shards > 0
		}
		count, ok := p.g.inputInt(s.node, "count")
		return 1, ok && count >= 0
	}
	return 0, false
}

// resting visits the steps from a root down to where the skip rests, and tells which those are. more is how many elements of a
// step are left out for each of the root's.
func (p *planner) resting(s *step, w way, ordered bool, more int64, visit func(s *step, more int64, rests bool)) {
	factor, ok := p.sinks(s, ordered)
	if _, cut := w.cuts[s]; cut || !ok || s.node.GetName() == p.kept || more > math.MaxInt32/factor {
		visit(s, more, true)
		return
	}
	visit(s, more, false)
	for _, in := range s.in {
		p.resting(in, w, ordered, more*factor, visit)
	}
}

// begins tells whether a stream may begin at an index at all: the elements at the indices before have to be the same in every run.
func (p *planner) begins(root *step, w way, mode pecanv1.Mode) (why string) {
	switch {
	case !keepsOrder(mode) && p.loose(root) != nil:
		return "its steps may give elements in any order"
	case w.batch != nil && w.batchWay == closing:
		for s := root; s != w.batch; s = s.in[0] {
			if factor, ok := p.sinks(s, isOrdered(mode)); !ok || factor != 1 {
				return fmt.Sprintf("%s stands above a batch that is filled from several streams", s.node.GetName())
			}
		}
	}
	return ""
}

func isOrdered(mode pecanv1.Mode) bool { return mode == pecanv1.Mode_MODE_DETERMINISTIC }

// planResume says how a stream goes on at an index.
func (p *planner) planResume(plan *pecanv1.Plan, root *step, w way) {
	plan.Resume = &pecanv1.Resume{Strategy: pecanv1.Resume_RECOMPUTE, Checkpoints: p.checkpoints(root, w, plan.Mode) == ""}
	if why := p.begins(root, w, plan.Mode); why != "" {
		say(plan, "A stream that moves to another worker is run again from its start: %s.", why)
		return
	}
	saved, again := false, weightNone
	var blocker *step
	p.resting(root, w, isOrdered(plan.Mode), 1, func(s *step, _ int64, rests bool) {
		if !rests {
			saved = saved || p.weight(s) > weightNone || s.rule.kind == batched
			return
		}
		plan.Resume.SkipNodes = append(plan.Resume.SkipNodes, s.node.GetName())
		_, cut := w.cuts[s]
		if work := p.workAgain(s, w); work > again || blocker == nil {
			again = work
			if !cut && s.rule.kind != source {
				blocker = s
			}
		}
	})
	where := strings.Join(plan.Resume.SkipNodes, ", ")
	switch {
	case again == weightNone && blocker == nil:
		plan.Resume.Strategy = pecanv1.Resume_SEEK
		say(plan, "A stream that moves to another worker begins at its index above %s: nothing is computed again.", where)
	case saved:
		plan.Resume.Strategy = pecanv1.Resume_PARTIAL
		say(plan, "A stream that moves to another worker begins at its index above %s: what lies below is run again.", where)
	default:
		plan.Resume.SkipNodes = nil
		say(plan, "A stream that moves to another worker is run again from its start: no element of %s can be had without those before it.", where)
	}
}

// workAgain is the heaviest work of what a stream runs again when the skip rests on a step.
func (p *planner) workAgain(s *step, w way) int {
	weight := weightNone
	s.walk(func(below *step) {
		weight = max(weight, p.weight(below))
		if below.rule.kind == source && below.rule.cost > 0 {
			weight = weightHeavy
		}
	})
	return weight
}

// checkpoints says why an iterator that is restored would not go on with the same elements; "" when it would. TensorFlow saves
// buffers, positions and the state of seeded shuffles, but nothing that functions keep from call to call.
func (p *planner) checkpoints(root *step, w way, mode pecanv1.Mode) (why string) {
	if w.batch != nil && w.batchWay == closing {
		return "its two halves cannot be saved at one index"
	}
	var below func(s *step, counted bool)
	below = func(s *step, counted bool) {
		f, name := p.facts(s), s.node.GetName()
		counted = counted || changesCount(s)
		switch {
		case f.stateful || f.writes:
			why = name + " keeps state that a checkpoint does not hold"
		case (f.draws || f.wild) && (counted || isOrdered(mode)) && !p.keyed[name]:
			why = name + " draws values one after another, from a state that a checkpoint does not hold"
		case f.caches || s.rule.kind == cached || s.node.GetOp() == "SnapshotDatasetV2":
			why = name + " fills a cache as it is read"
		}
		for _, in := range s.in {
			below(in, counted)
		}
		for _, c := range s.captured {
			below(c, true)
		}
	}
	below(root, false)
	return why
}

// begin has the graph of a stream begin at an index, from root down.
func (e *editor) begin(root *step, index uint64) {
	if index == 0 {
		return
	}
	e.p.resting(root, e.plan.way, e.ordered(), 1, func(s *step, more int64, rests bool) {
		n := int64(min(index, math.MaxInt64))
		if n > math.MaxInt64/more {
			n = math.MaxInt64
		} else {
			n *= more
		}
		e.cargo.left[s] = n
		if rests {
			e.skips[s] = n
			return
		}
		e.sunk[s] = true
		e.lower(s, n)
	})
}

// lower lets a step that counts its elements know that the first n are left out.
func (e *editor) lower(s *step, n int64) {
	arg := ""
	switch {
	case s.node.GetOp() == "TakeDataset" && s.rule.kind == position:
		arg = "count"
	case s.rule.kind == asserted:
		arg = "cardinality"
	default:
		return
	}
	if count, ok := e.g.inputInt(s.node, arg); ok && count >= 0 {
		e.setInput(s.node.GetName(), arg, e.addInt(startPrefix+s.node.GetName()+"/"+arg, max(0, count-n)))
	}
}

// startPrefix begins the names of what leaves elements out; the name of the node that gives them follows.
const startPrefix = "pecan_start/"

// skip leaves out what the stream's first elements are made of, if the skip rests on this step.
func (e *editor) skip(s *step, input string) string {
	n := e.skips[s]
	if n == 0 {
		return input
	}
	prefix := startPrefix + s.node.GetName()
	types, shapes := e.outputOf(s)
	return e.add(&tf.NodeDef{Name: prefix + "/skip", Op: "SkipDataset",
		Input: []string{input, e.addInt(prefix+"/first", n)}, Attr: datasetAttrs(types, shapes)})
}
