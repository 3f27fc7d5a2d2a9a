package split

import (
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// This file changes the tree of steps before it is divided: it removes the outermost repeat.

// copyTree copies the steps, so that rewiring does not change the original.
func copyTree(s *graph.Step) *graph.Step {
	c := *s
	c.In = make([]*graph.Step, len(s.In))
	for i, in := range s.In {
		c.In[i] = copyTree(in)
	}
	return &c
}

// RemoveOuterRepeat removes the outermost repeats. It also returns the number of repetitions: 1 without a repeat, -1
// for an endless one. Steps may stay downstream of a removed repeat if they treat each element, or each batch, of a
// repetition on its own.
func (p *Planner) RemoveOuterRepeat(root *graph.Step) (*graph.Step, int64) {
	repetitions := int64(1)
	for {
		at := p.outerRepeat(root)
		if at == nil {
			return root, repetitions
		}
		times, _ := p.g.InputInt(at.Node, "count")
		if times > 0 && repetitions > 0 && repetitions > (1<<40)/times {
			return root, repetitions
		}
		if times < 0 || repetitions < 0 {
			repetitions = -1
		} else {
			repetitions *= times
		}
		root = p.removeStep(root, at)
	}
}

// OneEpoch returns the last step of one epoch of a plan. Streams do not run the outermost repeat if the plan removed it. ok is
// false if the steps are no tree.
func OneEpoch(g *graph.Graph, plan *pecanv1.Plan) (root *graph.Step, ok bool) {
	_, root, ok = plannedEpoch(g, plan)
	return root, ok
}

// removeStep copies a tree without one step. That step must read a single other step.
func (p *Planner) removeStep(root, removed *graph.Step) *graph.Step {
	if root == removed {
		return copyTree(root.In[0])
	}
	c := *root
	c.In = make([]*graph.Step, len(root.In))
	for i, in := range root.In {
		c.In[i] = p.removeStep(in, removed)
	}
	return &c
}

// outerRepeat finds the repeat that can be removed next, nil when there is none.
func (p *Planner) outerRepeat(root *graph.Step) *graph.Step {
	for s := root; ; s = s.In[0] {
		if p.g.Freezes(s.Node) {
			// A cache stores the repeated elements, and random steps draw the same values in each epoch.
			return nil
		}
		switch s.Rule.Kind {
		case ops.Repeated:
			times, ok := p.g.InputInt(s.Node, "count")
			if !ok || times == 0 || times == 1 || p.MayBeEndless(s.In[0]) {
				return nil
			}
			if p.Cardinality(s.In[0]) == 1 {
				// The repeat produces one element over and over. An epoch per element would cost more than the element.
				return nil
			}
			if kept := p.cacheUpstream(s.In[0]); kept == cacheInFile || (kept == cacheInMemory && times > 0) {
				// The cache serves the repetitions after the first, and two epochs at the same time would write one file.
				return nil
			}
			if !p.batchesFit(root, s) {
				if !p.Carry || times > 0 || !p.carries(root, s) {
					return nil
				}
				p.carried = true
			}
			return s
		case ops.OneToOne, ops.PassThrough, ops.Batched:
		case ops.Asserted:
			// An assertion downstream of a repeat counts the elements of all repetitions.
			return nil
		case ops.PerElement:
			if s.Rule.Mixes || p.Facts(s).Endless {
				return nil
			}
		default:
			return nil
		}
	}
}

// batchesFit reports whether every batch downstream of a repeat ends where a repetition ends. Otherwise separate epochs
// give other batches than a local run, whose batches span repetitions.
func (p *Planner) batchesFit(root, repeat *graph.Step) bool {
	single := p.removeStep(root, repeat)
	for s, original := single, root; original != repeat; s, original = s.In[0], original.In[0] {
		if s.Rule.Kind != ops.Batched {
			continue
		}
		n := p.Cardinality(s.In[0])
		size, ok := p.g.InputInt(s.Node, "batch_size")
		if !ok || n < 0 || n%size != 0 {
			return false
		}
	}
	return true
}

// planWithCarry returns a plan in which an epoch joins the last rows of the epoch before. It returns nil if there is none,
// or if an epoch is too little work. without is the plan with the endless repeat and therefore one stream.
func planWithCarry(g *graph.Graph, opts *pecanv1.JobOptions, env Env, without *pecanv1.Plan) *pecanv1.Plan {
	switch without.GetMode() {
	case pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_AT_LEAST_ONCE, pecanv1.Mode_MODE_DETERMINISTIC:
	default:
		// A truncated stream keeps no rows back.
		return nil
	}
	dynamic := opts.GetSharding() == pecanv1.Sharding_SHARDING_UNSPECIFIED || opts.GetSharding() == pecanv1.Sharding_SHARDING_DYNAMIC
	if !env.Carry || !dynamic || without.GetWritesFiles() {
		return nil
	}
	if without.GetNumStreams() != 1 && (opts.GetStreams() > 1 || env.Division.GetNumStreams() > 1) {
		// The number was asked for. Each of these streams would repeat all work.
		free, unasked := proto.CloneOf(opts), env
		free.Streams, unasked.Division = 0, nil
		if plan, err := keyedPlan(g, free, unasked, false); err == nil {
			without = plan
		}
	}
	if without.GetNumStreams() != 1 {
		return nil
	}
	plan, err := keyedPlan(g, opts, env, true)
	if err != nil || !plan.GetCarry() {
		return nil
	}
	return plan
}

// carryStreams is the least work of an epoch in a plan with a carry, in multiples of the least work of a stream.
// Opening an epoch and joining its rows takes tens of milliseconds, which is too much for an epoch of less data.
const carryStreams = 4

// setCarry completes a plan whose repeat was removed only because batches go on in the next epoch. It sets no carry if the
// rows that are left could not be moved, or if an epoch is too little work. Then the plan is not used.
func (p *Planner) setCarry(plan *pecanv1.Plan, root *graph.Step, opts *pecanv1.JobOptions, env Env) {
	if !p.carried || plan.NumStreams <= 1 || !plan.HasClosing() || !IsRepeatable(plan) {
		return
	}
	d, err := p.FindDivision(p.Arrange(root, plan), plan)
	if err != nil || opts.GetStreams() == 0 && env.Division == nil && !p.workload(root, d, plan, env).worth(carryStreams) {
		return
	}
	// Locally the dataset has no end.
	plan.Carry, plan.Cardinality = true, analysis.Infinite
	addReason(plan, "repeat() was removed: each repetition is an epoch. Leftover rows of an epoch go into the first joined batch of the next one.")
}

// carries reports whether the batches downstream of an endless repeat can go on from one epoch to the next. That is so
// for one batch whose rows can be moved to another stream.
func (p *Planner) carries(root, repeat *graph.Step) bool {
	var batch *graph.Step
	for s := root; s != repeat; s = s.In[0] {
		if s.Rule.Kind != ops.Batched {
			continue
		}
		if batch != nil {
			return false
		}
		batch = s
	}
	return batch != nil && p.canJoinRemainders(batch)
}
