package resume

import (
	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// CheckResumable refuses jobs in which one trainer's position does not say what comes next.
func CheckResumable(c *epoch.Consumer) error {
	switch {
	case c.Shared():
		return reason.New(reason.Unsupported, "a position is that of one trainer, and job %q is shared by its name: what the others had is not in it. Leave job_name out where a trainer shall go on where it stopped", c.Request.GetJobName())
	case c.Plan.GetNumStreams() == 0:
		return reason.New(reason.Unsupported, "with sharding OFF every worker gives the whole dataset, and a position in that means nothing to other workers. Choose another sharding policy where a trainer shall go on where it stopped")
	}
	return nil
}

// Check refuses a token that would find other elements under the same indices.
func Check(t *pecanv1.Token, c *epoch.Consumer, requested *pecanv1.JobOptions) error {
	differs := func(what, then, now any) error {
		return reason.New(reason.BadArgument, "load a state: it was saved with %s %v, and this dataset has %v. Its elements would not be those that come next", what, then, now)
	}
	switch plan := c.Plan; {
	case t.GetFingerprint() != plan.GetFingerprint():
		return differs("the graph", t.GetFingerprint(), plan.GetFingerprint())
	case t.GetMode() != c.Options.GetMode():
		return differs("the mode", t.GetMode(), c.Options.GetMode())
	case t.GetNumStreams() != plan.GetNumStreams():
		return differs("a number of streams of", t.GetNumStreams(), plan.GetNumStreams())
	case t.GetPlanHash() != plan.GetHash():
		return differs("the plan", t.GetPlanHash(), plan.GetHash())
	case t.GetPosition().GetOrder().GetHash() != "" && c.Options.GetOrder() <= pecanv1.Order_ORDER_OFF:
		return reason.New(reason.BadArgument, "load a state: it was saved where steps ran in another order than the registered one, and this dataset has order=\"off\". Give the `order` and `order_tolerance` with which it was saved")
	case requested.GetSeedSet() && t.GetSeed() != requested.GetSeed():
		return differs("the seed", t.GetSeed(), requested.GetSeed())
	}
	return checkPosition(t, c.Plan)
}

// checkPosition refuses a token of a place that no pass of the plan has: the dispatcher would refuse a stream that is not there with the first
// element, when the state has taken the place of the old one, and with a pass too many elements would come again.
func checkPosition(t *pecanv1.Token, plan *pecanv1.Plan) error {
	position, streams := t.GetPosition(), uint64(plan.GetNumStreams())
	if plan.HasClosing() {
		streams++
	}
	// The turn is behind the stream that was last.
	named := max(uint64(len(position.GetNext())), uint64(position.GetTurn()))
	for _, stream := range position.GetEnded() {
		named = max(named, uint64(stream)+1)
	}
	if named > streams {
		return reason.New(reason.BadArgument, "load a state: it names stream %d, and the streams of this dataset are %d, from 0 on; give what state_dict() gave", named-1, streams)
	}
	if repeat := plan.GetRepeat(); repeat >= 0 && t.GetPasses() >= uint64(max(1, repeat)) {
		return reason.New(reason.BadArgument, "load a state: it stands behind %d passes, of %d that this dataset repeats in all; give what state_dict() gave", t.GetPasses(), max(1, repeat))
	}
	return nil
}
