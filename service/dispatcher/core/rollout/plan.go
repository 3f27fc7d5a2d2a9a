package rollout

import (
	"fmt"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Planned answers PlanOrder, whose number it has.
type Planned struct {
	Number uint64
	// Order has the names of all steps, the one next to the source first; none: the registered one stays.
	Order []string
	// Steps are in the registered order.
	Steps []*pecanv1.ExplainedStep
	// PredictedBefore and PredictedAfter are seconds of CPU for an element of the source.
	PredictedBefore, PredictedAfter float64
	// Why says what the order gains, or why the registered one stays.
	Why string
	// Retry, when set, says why nothing could be planned now.
	Retry string
}

// Planned takes the plan that was asked for. Another answer is to a question that nobody has any more.
func (r *Rollouts) Planned(in Planned) {
	for _, u := range r.undecided() {
		o := r.open[u.key]
		if o == nil || o.planNumber == 0 || o.planNumber != in.Number {
			continue
		}
		o.planNumber = 0
		switch gain := in.gain(); {
		case in.Retry != "":
			o.waitsFor, o.due = in.Retry, r.host.Now()+planRetryAfter
		case len(in.Order) == 0:
			r.decide(u.key, &in, nil, in.Why)
		case durable.CheckSteps(in.Order) != nil:
			r.decide(u.key, &in, nil, "no order could be planned: "+durable.CheckSteps(in.Order).Error())
		case gain < trialShare:
			r.decide(u.key, &in, nil, fmt.Sprintf("another order would save %.1f %% of an epoch's CPU at most, and to try it may cost %.0f %% (%s)", 100*max(gain, 0), 100*trialShare, strings.TrimSuffix(in.Why, ".")))
		default:
			o.planned, o.due = &in, r.host.Now()
			r.host.Log(false, "order of steps planned", "dataset", u.key.Fingerprint, "policy", u.key.Policy.String(), "why", in.Why)
			r.startTrial(u, o)
		}
		return
	}
}

// tops are the steps of the registered and of the planned order above which nothing differs; empty where it does not say its steps.
func (in *Planned) tops() (registered, ordered string) {
	for i, step := range slices.Backward(in.Steps) {
		if len(in.Steps) == len(in.Order) && step.GetNode() != in.Order[i] {
			return step.GetNode(), in.Order[i]
		}
	}
	return "", ""
}

// produced gives the elements that have come from a step, or from the highest below it of which that is known, and the CPU of the steps above;
// "" is the highest step.
func (in *Planned) produced(step string, nodes []*pecanv1.NodeMetrics) (elements uint64, above float64) {
	reached := step == ""
	for _, s := range slices.Backward(in.Steps) {
		reached = reached || s.GetNode() == step
		at := slices.IndexFunc(nodes, func(n *pecanv1.NodeMetrics) bool { return n.Node == s.GetNode() })
		switch {
		case at < 0:
		case !reached:
			above += nodes[at].SelfCpuS
		case nodes[at].Elements > 0:
			return nodes[at].Elements, above
		}
	}
	return 0, above
}

// gain is the share of CPU that a planned order saves.
func (in *Planned) gain() float64 {
	if !(in.PredictedBefore > 0 && in.PredictedAfter >= 0) {
		return 0
	}
	return 1 - in.PredictedAfter/in.PredictedBefore
}

// registered is the registered order of the steps; nil where the plan does not say all of them.
func (in *Planned) registered() (names []string) {
	for _, step := range in.Steps {
		names = append(names, step.GetNode())
	}
	if !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(in.Order))) {
		return nil
	}
	return names
}

// covers are the steps from the lowest that moves to the highest, in the registered order; all, where that is not known.
func (in *Planned) covers() []string {
	registered := in.registered()
	if registered == nil {
		return slices.Clone(in.Order)
	}
	low, high := 0, len(registered)
	for low < high && registered[low] == in.Order[low] {
		low++
	}
	for low < high && registered[high-1] == in.Order[high-1] {
		high--
	}
	return registered[low:high]
}

// byStream tells whether one stream may have the order while another one has not. Elements are the same in both; but what a batch keeps back
// for the closing stream is joined with that of other streams, and is only the same where no step has passed the batch.
func (in *Planned) byStream() bool {
	registered := in.registered()
	for i, step := range in.Steps {
		if registered == nil || strings.Contains(step.GetOp(), "Batch") && !sameBelow(registered, in.Order, i) {
			return false
		}
	}
	return registered != nil
}

// sameBelow tells whether a step of an order has the same steps below it in another one.
func sameBelow(a, b []string, at int) bool {
	return b[at] == a[at] && !slices.ContainsFunc(b[:at], func(name string) bool { return !slices.Contains(a[:at], name) })
}
