package resume

import (
	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// CheckResumable refuses jobs where the position of one trainer does not say what comes next.
func CheckResumable(c *epoch.Consumer) error {
	switch {
	case c.Shared():
		return reason.New(reason.Unsupported, "a state covers one trainer, and job %q is shared by its name: the state cannot contain the elements of other trainers. Leave job_name out if the trainer has to resume", c.Request.GetJobName())
	case c.Plan.GetNumStreams() == 0:
		return reason.New(reason.Unsupported, "with sharding OFF every worker reads the whole dataset, and a position in it has no meaning for other workers. Choose another sharding policy if the trainer has to resume")
	}
	return nil
}

// Check refuses a token whose indices stand for other elements in this dataset.
func Check(t *pecanv1.Token, c *epoch.Consumer, requested *pecanv1.JobOptions) error {
	differs := func(what, then, now any) error {
		return reason.New(reason.BadArgument, "load a state: it was saved with %s %v, and this dataset has %v, so the saved position does not fit this dataset", what, then, now)
	}
	switch plan := c.Plan; {
	case t.GetFingerprint() != plan.GetFingerprint():
		return differs("the graph", t.GetFingerprint(), plan.GetFingerprint())
	case t.GetMode() != c.Options.GetMode():
		return differs("the mode", t.GetMode(), c.Options.GetMode())
	case t.GetNumStreams() != plan.GetNumStreams():
		return differs("a number of streams of", t.GetNumStreams(), plan.GetNumStreams())
	case t.GetGroup() != plan.GetGroup():
		return differs("a group of streams of", t.GetGroup(), plan.GetGroup())
	case t.GetPlanHash() != plan.GetHash():
		return reason.New(reason.BadArgument, "load a state: it was saved with the plan %s, and this dataset has %s, so the saved position does not fit this dataset. Resume with the arguments of distribute() and the version of Pecan with which it was saved, or begin without this state", t.GetPlanHash(), plan.GetHash())
	case t.GetPosition().GetOrder().GetHash() != "" && c.Options.GetOrder() <= pecanv1.Order_ORDER_OFF:
		return reason.New(reason.BadArgument, "load a state: it was saved where steps ran in another order than the registered one, and this dataset has order=\"off\". Give the `order` and `order_tolerance` with which it was saved")
	case requested.GetSeedSet() && t.GetSeed() != requested.GetSeed():
		return differs("the seed", t.GetSeed(), requested.GetSeed())
	}
	return checkPosition(t, c.Plan)
}

// checkPosition refuses a token with a position that no pass of the plan has. With an unknown stream the
// dispatcher would refuse only the first element, after the state has replaced the old one. With too many
// passes, elements would come again.
func checkPosition(t *pecanv1.Token, plan *pecanv1.Plan) error {
	position, streams := t.GetPosition(), uint64(plan.TotalStreams())
	// The turn is one past the stream that was read last.
	named := max(uint64(len(position.GetNext())), uint64(position.GetTurn()))
	for _, stream := range position.GetEnded() {
		named = max(named, uint64(stream)+1)
	}
	if named > streams {
		return reason.New(reason.BadArgument, "load a state: it names stream %d, and this dataset has %d streams, numbered from 0; give a value that state_dict() returned", named-1, streams)
	}
	listed, grouped := len(position.GetNext())+len(position.GetEnded()), len(position.GetEndedRuns())+len(position.GetEndedBits())+len(position.GetBegun())+len(position.GetBegunNext())
	if plan.GetGroup() > 0 && listed > 0 || plan.GetGroup() == 0 && grouped > 0 {
		return reason.New(reason.BadArgument, "load a state: its position has the form of another plan; give a value that state_dict() returned")
	}
	if _, err := epoch.NewProgress(position, plan.TotalStreams()); err != nil {
		return reason.New(reason.BadArgument, "load a state: %w; give a value that state_dict() returned", err)
	}
	if err := position.CheckRows(plan); err != nil {
		return reason.New(reason.BadArgument, "load a state: %w; give a value that state_dict() returned", err)
	}
	if repeat := plan.GetRepeat(); repeat >= 0 && t.GetPasses() >= uint64(max(1, repeat)) {
		return reason.New(reason.BadArgument, "load a state: it is after %d passes, and this dataset repeats %d in all; give a value that state_dict() returned", t.GetPasses(), max(1, repeat))
	}
	return nil
}
