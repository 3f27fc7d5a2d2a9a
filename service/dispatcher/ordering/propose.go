package ordering

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pecan-ml/pecan/policies/autoorder"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// minGain is the share of the predicted CPU that an order must save. A trial widens its interval by 2 % on both sides, so it
// could not confirm a smaller gain.
const minGain = 0.04

// maxPrefixes bounds the policy's search in a long section.
const maxPrefixes = 20_000

// Proposal is an order of a dataset's steps, and the reason for it.
type Proposal struct {
	// Order names all steps as graphorder.TraitsOf lists them, the one next to the source first; empty if the
	// registered order stays.
	Order []string
	// Steps are in the registered order.
	Steps []*pecanv1.ExplainedStep
	// PredictedBefore and PredictedAfter are CPU seconds per element of the source.
	PredictedBefore, PredictedAfter float64
	// Why is the predicted saving of the order, or the reason why the registered order stays.
	Why string
}

// Measured has the costs of the steps of a dataset.
type Measured struct {
	// Nodes are the metrics of the nodes of the registered graph.
	Nodes []*pecanv1.NodeMetrics
	// Other has those in another order; nil without any.
	Other *pecanv1.MeasuredOrder
}

// Propose plans an order for a job's dataset.
func Propose(g *graph.Graph, plan *pecanv1.Plan, options *pecanv1.JobOptions, measured Measured) (*Proposal, error) {
	if plan.GetFingerprint() != g.Fingerprint() {
		return nil, errors.New("the plan belongs to another dataset")
	}
	p := newProposer(g, plan, options, measured.Nodes)
	p.describe()
	p.describeOther(measured.Other)
	found, why := p.search()
	return p.proposal(found, why), nil
}

// proposer has the facts about a dataset, and the constraints that a search finds.
type proposer struct {
	g         *graph.Graph
	plan      *pecanv1.Plan
	options   *pecanv1.JobOptions
	metrics   map[string]*pecanv1.NodeMetrics
	tolerance pecanv1.OrderTolerance
	// paper is set if the policy is autoorder.Paper, which Graur et al. published (USENIX ATC 2024). It ignores
	// constraints.
	paper bool
	// unmeasured is set if only constraints are needed, not costs.
	unmeasured bool
	// keyed are the steps with keyed randomness: their random values follow from the element's index.
	keyed map[string]bool
	// all are the steps of the graph, displayNames their names for people. steps has the indexes of those that the
	// policy gets: all but those that return their input unchanged.
	all          []graphorder.Traits
	displayNames []string
	steps        []int
	autoorder.Pipeline
}

func newProposer(g *graph.Graph, plan *pecanv1.Plan, options *pecanv1.JobOptions, nodes []*pecanv1.NodeMetrics) *proposer {
	p := &proposer{
		g: g, plan: plan, options: options, metrics: map[string]*pecanv1.NodeMetrics{}, keyed: map[string]bool{}, all: graphorder.TraitsOf(g),
		tolerance: options.EffectiveTolerance(), paper: options.GetOrder().Published(),
	}
	for _, n := range pecanv1.WithInside(nodes) {
		p.metrics[n.GetNode()] = n
	}
	for _, name := range plan.GetKeyed() {
		p.keyed[name] = true
	}
	p.displayNames = stepNames(p.all)
	for i := range p.all {
		if !p.all[i].Passes {
			p.steps = append(p.steps, i)
		}
	}
	return p
}

// step returns the traits of a step by its index in steps.
func (p *proposer) step(i int) *graphorder.Traits { return &p.all[p.steps[i]] }

func (p *proposer) policy() autoorder.Plan {
	if p.paper {
		plan := autoorder.Paper(p.Pipeline)
		plan.Before, plan.After = autoorder.Predict(p.Pipeline, unmoved(len(p.steps))), autoorder.Predict(p.Pipeline, plan.Order)
		return plan
	}
	return autoorder.Cost(p.Pipeline, autoorder.Limits{MinGain: minGain, MaxPrefixes: maxPrefixes})
}

func unmoved(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// search runs the policy until the graph accepts its order. Each refusal adds a constraint. why is the reason
// if the registered order stays, otherwise empty.
func (p *proposer) search() (found autoorder.Plan, why string) {
	if len(p.steps) == 0 {
		return p.policy(), "The dataset has no steps that can move."
	}
	for range len(p.steps) + 1 {
		found = p.policy()
		if !found.Moves() {
			return found, p.whyUnmoved(found)
		}
		if p.paper && p.pinFirstViolation(found.Order) {
			continue
		}
		ordered, err := graphorder.Reorder(p.g, p.names(found.Order))
		if err == nil {
			if why = p.planDiffers(ordered); why != "" && p.forbidPastBatches(found.Order, why) {
				continue
			}
			return found, why
		}
		var refused *graphorder.Refused
		if !errors.As(err, &refused) {
			return found, fmt.Sprintf("The steps stay in their registered order: %v.", err)
		}
		p.constrainRefused(refused, found.Order)
	}
	return found, "The steps stay in their registered order: the graph cannot be written in any of the planned orders."
}

func (p *proposer) whyUnmoved(found autoorder.Plan) string {
	if !(found.Before > 0) {
		return "The steps stay in their registered order: their costs are not known yet."
	}
	if p.paper {
		return "The steps stay in their registered order: steps that shrink elements already run as early as possible, and steps that enlarge elements as late as possible."
	}
	return fmt.Sprintf("The steps stay in their registered order: no other allowed order would save at least %.0f %% of their CPU.", 100*minGain)
}

// names lists all steps in an order. Steps that return their input unchanged keep their positions.
func (p *proposer) names(order []int) []string {
	names := make([]string, len(p.all))
	next := 0
	for i := range p.all {
		from := i
		if !p.all[i].Passes {
			from = p.steps[order[next]]
			next++
		}
		names[i] = p.all[from].Node
	}
	return names
}

// planDiffers describes how the plan of an ordered graph differs; empty if its streams have the same elements.
func (p *proposer) planDiffers(ordered *graph.Graph) string {
	env := split.Env{Division: &pecanv1.Division{NumStreams: p.plan.GetNumStreams(), Group: p.plan.GetGroup()}, Carry: p.plan.GetCarry()}
	switch p.options.GetSharding() {
	case pecanv1.Sharding_SHARDING_FILE, pecanv1.Sharding_SHARDING_DATA, pecanv1.Sharding_SHARDING_FILE_OR_DATA, pecanv1.Sharding_SHARDING_HINT:
		env.StaticWorkers = int(p.plan.GetNumStreams())
	}
	other, err := split.MakePlan(ordered, p.options, env)
	if err != nil {
		return fmt.Sprintf("The steps stay in their registered order: in the cheapest order the dataset cannot be divided into streams: %v.", err)
	}
	if difference := planDifference(p.plan, other); difference != "" {
		return fmt.Sprintf("The steps stay in their registered order: in the cheapest order the dataset would be divided into streams differently (%s).", difference)
	}
	return ""
}

func planDifference(plan, other *pecanv1.Plan) string {
	cut, otherCut := plan.GetCut(), other.GetCut()
	switch {
	case plan.GetNumStreams() != other.GetNumStreams() || plan.GetGroup() != other.GetGroup():
		return fmt.Sprintf("%d streams, not %d", other.GetNumStreams(), plan.GetNumStreams())
	case cut.GetKind() != otherCut.GetKind() || cut.GetBlock() != otherCut.GetBlock() || !slices.Equal(cut.GetEdges(), otherCut.GetEdges()):
		return "with the cut at another step"
	case plan.GetBatchStrategy() != other.GetBatchStrategy() || plan.GetBatchRows() != other.GetBatchRows() || plan.GetDropRemainder() != other.GetDropRemainder():
		return "with another batch strategy"
	case plan.GetRepeat() != other.GetRepeat():
		return "with another repetition"
	case plan.GetCache().GetNode() != other.GetCache().GetNode():
		return "with another cached step"
	}
	return ""
}

// proposal returns the result of a search. why is empty if the order can be used.
func (p *proposer) proposal(found autoorder.Plan, why string) *Proposal {
	moves := found.Moves() && why == ""
	proposal := &Proposal{PredictedBefore: found.Before, PredictedAfter: found.After, Why: why}
	if !moves {
		proposal.PredictedAfter = found.Before
	} else {
		proposal.Order = p.names(found.Order)
		proposal.Why = p.gain(found)
	}
	reasons := make([]string, len(p.all))
	for i, at := range p.steps {
		switch reasons[at] = found.Reasons[i]; {
		case found.Moves() && !moves && found.Order[i] != i:
			reasons[at] = "stays: the cheapest order cannot be used"
		}
	}
	outside := false
	positions := map[string]int{}
	for position, name := range proposal.Order {
		positions[name] = position
	}
	for i := range p.all {
		t := &p.all[i]
		position, planned := positions[t.Node]
		if !planned {
			position = i
		}
		if t.Passes {
			reasons[i] = "stays: it returns its input unchanged, and other steps move past it"
		}
		step := &pecanv1.ExplainedStep{
			Node: t.Node, Op: t.Op, Figures: p.metrics[t.Node], Traits: p.traitNames(t), Place: uint32(position), Reason: reasons[i],
			Begins: outside && t.Begins && t.Inside == "", Inside: t.Inside,
		}
		outside = outside || t.Inside == ""
		if p.displayNames[i] != t.Node {
			step.Label = p.displayNames[i]
		}
		proposal.Steps = append(proposal.Steps, step)
	}
	return proposal
}

// gain describes the saving of an order, and the step that moves furthest.
func (p *proposer) gain(found autoorder.Plan) string {
	furthest, by := 0, 0
	for position, step := range found.Order {
		if far := max(position-step, step-position); far > by || far == by && step > position {
			furthest, by = step, far
		}
	}
	move := p.name(furthest) + " " + found.Move(furthest)
	if found.Before > 0 {
		return fmt.Sprintf("%s; the predicted CPU per element of the source is %s, instead of %s in the registered order (%.0f %% less).",
			move, autoorder.Span(found.After), autoorder.Span(found.Before), 100*(found.Before-found.After)/found.Before)
	}
	return move + "; the saving is not known."
}
