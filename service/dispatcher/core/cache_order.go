package core

import (
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// A cache has the elements of one order of the steps up to the cached one: its key includes the order. A stream reads and writes
// the cache of its own order. Only the order of the newest decision is written. So the first decision waits for an order that
// is about to be decided, and compares what is stored and computed in either order. Decision and order are one record.

// storedStep returns how the elements at the cached step of a stream are stored, and the step whose output they are. It returns
// nil if no step is cached, or if no step gives these elements in the order of the stream.
func storedStep(epoch *durable.Epoch, stream uint32) (step *pecanv1.CachePlan, last string) {
	if durable.HasOrder(epoch, stream) {
		return cachedStep(epoch).InOrder(epoch.Order)
	}
	return cachedStep(epoch), cachedStep(epoch).GetNode()
}

// storedSteps returns how the elements at the cached step of an epoch are stored, in all orders of its streams.
func storedSteps(epoch *durable.Epoch) (steps []*pecanv1.CachePlan) {
	if !epoch.WhollyOrdered() {
		steps = addStep(steps, cachedStep(epoch))
	}
	if len(epoch.Order) > 0 {
		ordered, _ := cachedStep(epoch).InOrder(epoch.Order)
		steps = addStep(steps, ordered)
	}
	return steps
}

// decidedStep returns how the elements at the step of the newest decision are stored, or those of pecan.cache(); nil without
// either.
func decidedStep(job *durable.Job) *pecanv1.CachePlan {
	step, _ := stepNamed(job, job.CacheDecision.GetNode()).InOrder(job.CacheDecision.GetOrder())
	return step
}

// cachedSteps returns how elements are stored by the newest decision on a job, which comes first, and in its open epochs.
func cachedSteps(job *durable.Job) []*pecanv1.CachePlan {
	steps := addStep(nil, decidedStep(job))
	for _, epoch := range job.Epochs {
		for _, step := range storedSteps(epoch) {
			steps = addStep(steps, step)
		}
	}
	return steps
}

// addStep adds a step that is not nil unless the list has it.
func addStep(steps []*pecanv1.CachePlan, step *pecanv1.CachePlan) []*pecanv1.CachePlan {
	if step == nil || slices.ContainsFunc(steps, func(known *pecanv1.CachePlan) bool { return known.Key == step.Key && known.Node == step.Node }) {
		return steps
	}
	return append(steps, step)
}

// mayKeepIn reports whether the step of a decision can be cached in its order. The order may have been rolled back since the
// decision was asked for.
func (c *Core) mayKeepIn(job *durable.Job, decision *pecanv1.CacheDecision) bool {
	step, _ := durable.CandidateStep(job.Plan, decision.Node).InOrder(decision.Order)
	return step != nil && slices.Equal(decision.Order, c.state.OrderFor(job))
}

// isWrittenIn reports whether the newest decision lets an epoch store elements in the order of a step.
func isWrittenIn(epoch *durable.Epoch, step *pecanv1.CachePlan) bool {
	decided := decidedStep(epoch.Job)
	return decided == nil || decided.Node != step.Node || decided.Key == step.Key
}

// orderOfEpoch returns the order of an epoch that is opened with a cached step: that of the cache. A position keeps its order.
// whole is true if all streams have the order.
func orderOfEpoch(job *durable.Job, position *pecanv1.Position, order []string) (chosen []string, whole bool) {
	cached := job.CacheDecision.GetNode()
	if cached == "" || position.GetOrder() != nil {
		return order, false
	}
	step := stepNamed(job, cached)
	if !step.SameInOrders(order, job.CacheDecision.GetOrder()) {
		return nil, false
	}
	return order, !step.SameInOrders(order, nil)
}

// waitsForOrder says what the first decision on a job waits for, because the order of its steps is about to be decided. The
// decision waits only in the first epoch. It does not wait if another job has stored elements in the registered order: this
// job can read them at once.
func (c *Core) waitsForOrder(job *durable.Job, steps []measure.CachedStep) string {
	if slices.ContainsFunc(steps, func(step measure.CachedStep) bool { return step.Stored > 0 }) {
		return ""
	}
	if job.CacheDecision != nil || len(job.Closed) > 0 || slices.ContainsFunc(job.Epochs, (*durable.Epoch).Delivered) {
		return ""
	}
	if why := c.orders.Awaited(job); why != "" {
		return "the order of the steps is not decided yet: " + why
	}
	return ""
}

// orderedFacts returns the decided order of a job, with what is stored in it; nil without one.
func (c *Core) orderedFacts(job *durable.Job) *measure.Ordered {
	decided, order := c.state.DecisionFor(job), c.state.OrderFor(job)
	if len(order) == 0 || !decidesCache(job) {
		return nil
	}
	now := job.CacheDecision
	return &measure.Ordered{
		Decided: proto.CloneOf(decided), Steps: c.cachedFacts(job, order),
		InForce: now.GetNode() == "" || stepNamed(job, now.Node).SameInOrders(now.Order, order),
	}
}
