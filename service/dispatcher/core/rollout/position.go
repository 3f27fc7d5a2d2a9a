package rollout

import (
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// In mode deterministic the bytes of an epoch depend on the order of its steps. A position therefore names the
// order, and the epoch opened there has it, whatever was decided meanwhile. The core reads no graphs, so the
// caller finds an order that was not decided here, and checks it against the graph.

// PositionOrder returns the order that positions in an epoch record. It returns nil if there is only one order, or if the
// order does not matter.
func (r *Rollouts) PositionOrder(job *durable.Job, epoch *durable.Epoch) *pecanv1.EpochOrder {
	if job.Options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC || epoch == nil {
		return nil
	}
	if _, off := r.state.OrderKey(job); off != "" && len(epoch.Order) == 0 {
		return nil
	}
	return pecanv1.NewEpochOrder(job.Plan, epoch.Order)
}

// OrderToFind asks which order of a dataset's steps a position names, and whether graph, plan and options allow
// it.
type OrderToFind struct {
	Fingerprint string
	Plan        *pecanv1.Plan
	Options     *pecanv1.JobOptions
	Order       *pecanv1.EpochOrder
}

// Decided returns the decided order of a job, so that the caller can check it against the graph; nil if there is none. A
// decision on more steps than an EpochOrder lists is not checked.
func (r *Rollouts) Decided(jobID string) *OrderToFind {
	job := r.state.Job(jobID)
	if job == nil {
		return nil
	}
	order := r.state.OrderFor(job)
	if len(order) == 0 || len(order) > pecanv1.MaxOrderSteps {
		return nil
	}
	options := proto.CloneOf(job.Options)
	options.OrderTolerance = options.EffectiveTolerance()
	return &OrderToFind{Fingerprint: r.state.Dataset(job.DatasetId).GetFingerprint(), Plan: job.Plan, Options: options, Order: pecanv1.NewEpochOrder(job.Plan, order)}
}

// OrderToFind asks for the order of a position; nil if the core knows it.
func (r *Rollouts) OrderToFind(req *pecanv1.OpenEpochRequest) *OrderToFind {
	job, named := r.state.Job(req.JobId), req.GetPosition().GetOrder()
	if job == nil || job.Options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC || len(named.GetSteps()) == 0 {
		return nil
	}
	key, off := r.state.OrderKey(job)
	if off != "" || named.GetHash() == pecanv1.OrderHash(job.Plan, r.state.OrderFor(job)) {
		return nil
	}
	return &OrderToFind{Fingerprint: key.Fingerprint, Plan: job.Plan, Options: job.Options, Order: named}
}

// OrderAt returns the order of a new epoch: the decided one, except where a trainer of mode deterministic resumes
// an epoch. If the position does not name an order, that epoch had the registered one.
func (r *Rollouts) OrderAt(job *durable.Job, position *pecanv1.Position, found []string) ([]string, error) {
	decided := r.state.OrderFor(job)
	named := position.GetOrder()
	if job.Options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC || named == nil && !started(position) {
		return decided, nil
	}
	_, off := r.state.OrderKey(job)
	switch hash := named.GetHash(); {
	case hash == "":
		return nil, nil
	case off != "":
		return nil, reason.New(reason.BadArgument, "open epoch at a position: its steps ran in another order than the registered one, which job %q does not allow: %s. Resume with the order and the order_tolerance with which the state was saved, or begin without this state", job.JobId, off)
	case hash == pecanv1.OrderHash(job.Plan, decided):
		return decided, nil
	case durable.NamesOrder(job, position, found):
		return found, nil
	default:
		return nil, reason.New(reason.BadArgument, "open epoch at a position: its steps ran in the order %.12s. This dispatcher has not decided on that order for job %q, and the position does not list it. A position lists orders of up to 1,024 steps, and of up to 128 in plans with groups. Resume with the service where the state was saved, or begin without this state", hash, job.JobId)
	}
}

// started reports whether a position is past the start of its epoch.
func started(position *pecanv1.Position) bool {
	return len(position.GetEnded()) > 0 || len(position.GetEndedRuns()) > 0 || len(position.GetEndedBits()) > 0 || len(position.GetBegun()) > 0 || position.GetTurn() > 0 || slices.ContainsFunc(position.GetNext(), func(n uint64) bool { return n > 0 })
}
