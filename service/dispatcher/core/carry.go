package core

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// In a plan with a carry, batches go on from one epoch to the next. The last closing stream of an epoch joins the rows that
// the epoch before left. It leaves fewer than a batch for the next one. Nobody stores these rows. They stay in the
// remainders of the streams, so an epoch stays open without readers as long as a later one needs its remainders.

// afterOf returns the epoch whose batches go on in a new one, or nil.
func afterOf(job *durable.Job, number uint64, req *pecanv1.OpenEpochRequest) (*uint64, error) {
	switch {
	case !job.Plan.GetCarry() || req.Position != nil:
		return nil, nil
	case durable.Private(job):
		if req.After != nil && (durable.FindEpoch(job, *req.After) == nil || *req.After >= number) {
			return nil, reason.New(reason.BadArgument, "open epoch: epoch %d of job %q continues the batches of epoch %d, which is not open", number, job.JobId, *req.After)
		}
		return req.After, nil
	case number > 0 && durable.FindEpoch(job, number-1) != nil:
		before := number - 1
		return &before, nil
	}
	return nil, nil
}

// openSources opens the earlier epochs whose rows an epoch joins that begins at a position. All their streams count as
// delivered, so only those in the list run, for their remainders.
func (c *Core) openSources(job *durable.Job, position *pecanv1.Position) {
	streams := durable.PlannedStreams(job)
	for _, kept := range slices.Concat(position.GetJoins(), position.GetCarry()) {
		if durable.FindEpoch(job, kept.Epoch) != nil {
			continue
		}
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{
			JobId: job.JobId, Epoch: kept.Epoch, Streams: streams,
			Position: &pecanv1.Position{Epoch: kept.Epoch, EndedRuns: []uint32{0, streams}, Carried: true},
		}}})
	}
}

// carryRows records which rows the changed epochs leave for the next one, once all streams are produced that their last
// closing streams join.
func (c *Core) carryRows() {
	for _, job := range c.touchedCarries() {
		for _, epoch := range job.Epochs {
			if before := epoch.After; before != nil && schedule.Read(epoch) && !durable.AllPrefetched(epoch) {
				c.dropUnreadRows(job, durable.FindEpoch(job, *before))
			}
			last, _ := job.Plan.LastClosing()
			if epoch.After == nil && !epoch.Carried && schedule.RemaindersReady(epoch, last) {
				c.emitCarried(epoch, durable.Carry(epoch.Joined(), uint64(job.Plan.GetBatchRows())))
			}
		}
	}
}

// dropUnreadRows lets an epoch leave no rows if its readers left it before its end. The epoch after it then begins with
// its own rows, as a local run begins again.
func (c *Core) dropUnreadRows(job *durable.Job, epoch *durable.Epoch) {
	if !epoch.Carried && (epoch.Error != nil || len(epoch.Passes) == 0 && !epoch.Delivered()) {
		c.emitCarried(epoch, nil)
		c.event("the next epoch gets no rows of an epoch that all trainers have left", "job", job.JobId, "epoch", epoch.Epoch)
	}
}

func (c *Core) emitCarried(epoch *durable.Epoch, carry []*pecanv1.KeptRows) {
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochCarried{EpochCarried: &pecanv1.EpochCarried{
		JobId: epoch.Job.JobId, Epoch: epoch.Epoch, Carry: carry,
	}}})
}

// keeps reports whether an epoch without readers stays open for its remainders. In a shared job the newest epoch does:
// the client that opens the next one may come later.
func (c *Core) keeps(epoch *durable.Epoch) bool {
	job := epoch.Job
	if !job.Plan.GetCarry() || job.Error != nil || epoch.Error != nil {
		return false
	}
	return epoch.Kept() || !durable.Private(job) && epoch.Epoch+1 == job.NextEpoch && epoch.Delivered()
}

// keptEpochs counts the epochs that only stay open for their remainders.
func (c *Core) keptEpochs(job *durable.Job) (n int) {
	for _, epoch := range job.Epochs {
		if len(epoch.Passes) == 0 && c.keeps(epoch) {
			n++
		}
	}
	return n
}

// endUnread ends the epochs that stayed open for their remainders, when no later epoch needs these any more.
func (c *Core) endUnread() {
	for _, job := range c.touchedCarries() {
		for _, epoch := range slices.Backward(slices.Clone(job.Epochs)) {
			over := durable.Private(job) || epoch.Delivered() || epoch.Error != nil
			if len(epoch.Passes) == 0 && over && !c.keeps(epoch) {
				c.endEpoch(job, epoch)
			}
		}
	}
}

// touchedCarries returns the jobs with a carry that have changed, in their order.
func (c *Core) touchedCarries() (jobs []*durable.Job) {
	for _, epoch := range c.touchedEpochs() {
		if epoch.Job.Plan.GetCarry() && !slices.Contains(jobs, epoch.Job) {
			jobs = append(jobs, epoch.Job)
		}
	}
	return jobs
}

// touchCarry notes that other epochs of the job may need fewer or other remainders.
func (c *Core) touchCarry(job *durable.Job) {
	if !job.Plan.GetCarry() {
		return
	}
	for _, epoch := range job.Epochs {
		c.touchEpoch(epoch)
	}
}

// joining returns the epochs of the job whose last closing stream still joins rows of an epoch, ascending.
func joining(epoch *durable.Epoch) (list []*durable.Epoch) {
	if !epoch.Job.Plan.GetCarry() {
		return nil
	}
	for _, other := range epoch.Job.Epochs {
		if other.StillJoins() && slices.ContainsFunc(other.Joins, func(kept *pecanv1.KeptRows) bool { return kept.Epoch == epoch.Epoch }) {
			list = append(list, other)
		}
	}
	return list
}

// remaindersOf returns what a closing stream joins: rows of earlier epochs, and the remainders of its streams.
func remaindersOf(epoch *durable.Epoch, closing uint32) (list []*pecanv1.RemainderSource) {
	if last, _ := epoch.Job.Plan.LastClosing(); closing == last {
		for _, kept := range epoch.Joins {
			remainder := &pecanv1.RemainderSource{Stream: kept.Stream, Rows: kept.Rows, EpochsBefore: epoch.Epoch - kept.Epoch, SkipRows: kept.Skip}
			// An epoch that has failed is closed earlier. Then this one has failed too.
			if before := durable.FindEpoch(epoch.Job, kept.Epoch); before != nil {
				source := before.Stream(kept.Stream)
				remainder.Lease, remainder.Worker, remainder.Ready = source.Lease, source.Worker, source.Produced
			}
			list = append(list, remainder)
		}
	}
	first, below := epoch.Sources(closing)
	for number := first; number < below; number++ {
		source := epoch.Stream(number)
		list = append(list, &pecanv1.RemainderSource{
			Stream: source.Stream, Lease: source.Lease, Worker: source.Worker, Ready: source.Produced || source.Truncated, Rows: source.RemainderRows,
		})
	}
	return list
}

// otherRows returns the rows of a list that a new run of a stream does not have; nil if it has all of them.
func otherRows(epoch *durable.Epoch, stream uint32, rows uint64) *pecanv1.KeptRows {
	for _, other := range epoch.Job.Epochs {
		for _, kept := range slices.Concat(other.Joins, other.Carry) {
			if kept.Epoch == epoch.Epoch && kept.Stream == stream && kept.Skip+kept.Rows != rows {
				return kept
			}
		}
	}
	return nil
}
