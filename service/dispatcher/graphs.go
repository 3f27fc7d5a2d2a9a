package dispatcher

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Graphs answers the dispatcher's questions about dataset graphs.
type Graphs interface {
	// Check returns the fingerprint of a graph. It refuses graphs that cannot be served, or that do not yield the
	// trainer's components.
	Check(graph []byte, components []*pecanv1.ComponentSpec) (fingerprint string, err error)
	// Plan divides a graph for a job with these options. known is what is known of the dataset and of a saved position.
	Plan(graph []byte, options *pecanv1.JobOptions, known split.Env) (*pecanv1.Plan, error)
	// Order proposes an order of a graph's steps from what they cost.
	Order(graph []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, measured ordering.Measured) (*ordering.Proposal, error)
	// Named finds the order that a position names, and refuses one that the steps may not have.
	Named(graph []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, named *pecanv1.EpochOrder) ([]string, error)
}

// graphPlanner implements Graphs with service/graph.
type graphPlanner struct {
	limits graph.Limits
	env    split.Env
}

// NewGraphs returns the Graphs of a configuration.
func NewGraphs(cfg Config) Graphs {
	limits := graph.DefaultLimits()
	limits.MaxBytes = cfg.MaxGraphBytes
	return &graphPlanner{limits: limits, env: split.Env{StaticWorkers: len(cfg.Core.WorkerAddresses)}}
}

// Check implements Graphs.
func (p *graphPlanner) Check(data []byte, components []*pecanv1.ComponentSpec) (string, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return "", err
	}
	if err := graph.CheckSpec(g, components); err != nil {
		return "", err
	}
	return g.Fingerprint(), nil
}

// Plan implements Graphs.
func (p *graphPlanner) Plan(data []byte, options *pecanv1.JobOptions, known split.Env) (*pecanv1.Plan, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return nil, err
	}
	known.StaticWorkers = p.env.StaticWorkers
	plan, err := split.MakePlan(g, options, known)
	if err != nil || len(plan.CacheSteps()) == 0 {
		return plan, err
	}
	ordered := graphorder.Names(g)
	for _, c := range plan.CacheCandidates {
		if c.Plan != nil {
			listCachedSteps(g, plan, c.Plan, ordered)
		}
	}
	if root, ok := split.OneEpoch(g, plan); ok {
		plan.Steps = stepsOf(root)
	}
	return plan, nil
}

// stepsOf returns the steps of an epoch, the last one first.
func stepsOf(root *graph.Step) (steps []*pecanv1.PlanStep) {
	var visit func(s *graph.Step)
	visit = func(s *graph.Step) {
		step := &pecanv1.PlanStep{Node: s.Node.GetName()}
		switch s.Rule.Kind {
		case ops.PassThrough:
			step.Counts = pecanv1.PlanStep_PASSED
		case ops.OneToOne, ops.Shuffled, ops.Cached, ops.Asserted:
			step.Counts = pecanv1.PlanStep_SAME
		}
		steps = append(steps, step)
		for _, in := range s.In {
			step.Inputs = append(step.Inputs, in.Node.GetName())
			visit(in)
		}
	}
	visit(root)
	return steps
}

// listCachedSteps notes which steps of an order are upstream of a cached step, and where they are in it. ordered are the names of the
// registered order.
func listCachedSteps(g *graph.Graph, plan *pecanv1.Plan, cached *pecanv1.CachePlan, ordered []string) {
	names, inside := upstreamOf(g, cached.Node), map[string][]string{}
	for _, name := range slices.Backward(ordered) {
		if caller := graphorder.Outermost(name); caller != name {
			inside[caller] = append(inside[caller], name)
		}
	}
	cached.Upstream = nil
	for _, name := range names {
		cached.Upstream = append(append(cached.Upstream, name), inside[name]...)
	}
	cached.Before = uint32(max(0, slices.IndexFunc(ordered, func(name string) bool { return slices.Contains(names, graphorder.Outermost(name)) })))
	if late := plan.GetCut().GetLateAfter(); len(plan.GetCut().GetLateShuffles()) > 0 && slices.Contains(names, late) {
		cached.LateAfter = late
	}
}

// upstreamOf returns the names of a step and of all steps upstream of it. From the last one on, they are in the order in which
// an order of steps lists them.
func upstreamOf(g *graph.Graph, node string) (names []string) {
	seen := map[*graph.Step]bool{}
	var visit func(s *graph.Step, within bool)
	visit = func(s *graph.Step, within bool) {
		if within = within || s.Node.GetName() == node; seen[s] {
			return
		}
		seen[s] = true
		if within {
			names = append(names, s.Node.GetName())
		}
		for _, in := range slices.Backward(append(slices.Clone(s.Captured), s.In...)) {
			visit(in, within)
		}
	}
	root, _ := g.Steps()
	visit(root, false)
	return names
}
