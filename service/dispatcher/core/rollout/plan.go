package rollout

import (
	"fmt"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Planned answers the PlanRequest with the same number.
type Planned struct {
	Number uint64
	// Order names all steps from the source on; empty if the registered order stays.
	Order []string
	// Steps are in the registered order.
	Steps []*pecanv1.ExplainedStep
	// PredictedBefore and PredictedAfter are CPU seconds per element of the source.
	PredictedBefore, PredictedAfter float64
	// Why says what the order gains, or why the registered order stays.
	Why string
	// Retry, if set, says why no plan was possible now.
	Retry string
	// Wider is the plan under WiderTolerance, the next wider tolerance that would save WiderGain more; nil without one.
	Wider          *Planned
	WiderTolerance pecanv1.OrderTolerance
}

// WiderGain is the share of CPU that a wider tolerance must be predicted to save to be worth a trial and a sentence.
const WiderGain = 0.2

// Planned takes a requested plan. It ignores answers to older requests.
func (r *Rollouts) Planned(in Planned) {
	for _, u := range r.undecided() {
		o := r.open[u.key]
		if o == nil || o.planNumber == 0 || o.planNumber != in.Number {
			continue
		}
		o.planNumber = 0
		switch gain, err := in.gain(), durable.CheckSteps(in.Order); {
		case in.Retry != "":
			o.waitsFor, o.due = in.Retry, r.host.Now()+planRetryAfter
		case len(in.Order) == 0:
			r.decide(u.key, &in, nil, in.Why)
		case err != nil:
			in.Order = nil
			r.decide(u.key, &in, nil, "no order could be planned: "+err.Error())
		case !needsProof(u.key.Policy):
			r.decide(u.key, &in, nil, in.Why)
		case gain < trialShare:
			r.decide(u.key, &in, nil, fmt.Sprintf("another order would save at most %.1f %% of an epoch's CPU, and a trial may cost %.0f %% (%s)", 100*max(gain, 0), 100*trialShare, strings.TrimSuffix(in.Why, ".")))
		default:
			o.planned, o.due = &in, r.host.Now()
			r.host.Log(false, "order of steps planned", "dataset", u.key.Fingerprint, "policy", u.key.Policy.String(), "why", in.Why)
			r.startTrial(u, o)
		}
		return
	}
}

// lastDifferent returns the last step that differs, in both orders: downstream of it, the orders are equal. It returns ""
// if the plan lists no steps, or if they have branches. A step in a function counts as the step that calls the function.
func (p *Planned) lastDifferent() (registered, ordered string) {
	if slices.ContainsFunc(p.Steps, (*pecanv1.ExplainedStep).GetBegins) {
		return "", ""
	}
	for i, step := range slices.Backward(p.Steps) {
		if len(p.Steps) == len(p.Order) && step.GetNode() != p.Order[i] {
			for i+1 < len(p.Steps) && p.Steps[i].GetInside() != "" {
				i++
			}
			return p.Steps[i].GetNode(), p.Order[i]
		}
	}
	return "", ""
}

// produced returns the elements of a step and the CPU of the steps downstream of it. If the step has no metrics, the next
// step upstream with metrics counts. "" is the last step.
func (p *Planned) produced(step string, nodes []*pecanv1.NodeMetrics) (elements uint64, downstream float64) {
	reached := step == ""
	for _, s := range slices.Backward(p.Steps) {
		reached = reached || s.GetNode() == step
		at := slices.IndexFunc(nodes, func(n *pecanv1.NodeMetrics) bool { return n.Node == s.GetNode() })
		switch {
		case at < 0:
		case !reached:
			downstream += nodes[at].SelfCpuS
		case nodes[at].Elements > 0:
			return nodes[at].Elements, downstream
		}
	}
	return 0, downstream
}

// gain returns the share of CPU that a planned order saves.
func (p *Planned) gain() float64 {
	if !(p.PredictedBefore > 0 && p.PredictedAfter >= 0) {
		return 0
	}
	return 1 - p.PredictedAfter/p.PredictedBefore
}

// registered returns the registered order of the steps; nil if the plan does not list all of them.
func (p *Planned) registered() (names []string) {
	for _, step := range p.Steps {
		names = append(names, step.GetNode())
	}
	if !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(p.Order))) {
		return nil
	}
	return names
}

// covers returns the steps from the first that moves to the last, in the registered order. It returns all steps if the
// registered order is unknown.
func (p *Planned) covers() []string {
	registered := p.registered()
	if registered == nil {
		return slices.Clone(p.Order)
	}
	first, end := 0, len(registered)
	for first < end && registered[first] == p.Order[first] {
		first++
	}
	for first < end && registered[end-1] == p.Order[end-1] {
		end--
	}
	return registered[first:end]
}

// byStream reports whether one stream may run in the order while other streams run in the registered one. Both orders
// give the same elements. But the closing stream joins the remainders of batches, and these are the same only if no
// step has moved past a batch.
func (p *Planned) byStream() bool {
	registered := p.registered()
	for i, step := range p.Steps {
		if registered == nil || strings.Contains(step.GetOp(), "Batch") && !sameUpstream(registered, p.Order, i) {
			return false
		}
	}
	return registered != nil
}

// sameUpstream reports whether a step has the same steps upstream of it in both orders.
func sameUpstream(a, b []string, at int) bool {
	return b[at] == a[at] && !slices.ContainsFunc(b[:at], func(name string) bool { return !slices.Contains(a[:at], name) })
}
