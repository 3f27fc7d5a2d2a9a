package client

import (
	"fmt"

	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/resume"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// passesLeft is how many passes come after the current one; -1 for ever.
func (it *Iteration) passesLeft() int64 {
	repeat := it.job.consumer.Plan.GetRepeat()
	if repeat < 0 {
		return -1
	}
	return max(0, repeat-1-int64(it.passesDone))
}

// advance goes from an epoch that ended to the next one, or to the end. it.mu is held.
func (it *Iteration) advance() {
	// The rest of a pass says nothing about the length of the next one.
	resumed := len(it.current.ResumeAt.GetNext()) > 0
	endless := it.passesAfter < 0 && it.alone() && it.current.Empty() && !resumed
	if taken := it.retire(); !resumed {
		it.job.finished(taken)
	}
	switch {
	case it.passesAfter == 0 && it.resumedAtEnd() && it.tooFew() == nil:
		// TensorFlow's repeat() would take an empty first pass for the end of everything.
		if given := len(it.current.ResumeAt.GetEnded()) - len(it.options.Resume.Position.GetEnded()); given > 0 {
			it.job.session.link.Log().Warn(fmt.Sprintf("nothing is left of epoch %d, since all that was to come of it is given up: the next one begins",
				it.current.Number()), "job", it.job.consumer.JobID)
		}
		it.options.Resume, it.passesDone, it.elements = nil, 0, 0
		it.passesAfter = it.passesLeft()
	case it.passesAfter == 0 || endless:
		// Repeating nothing for ever is nothing, as it is locally.
		it.finish(it.tooFew())
		return
	default:
		it.passesAfter = max(-1, it.passesAfter-1)
		it.passesDone++
	}
	it.previousEpoch = it.current.Number()
	it.job.mu.Lock()
	if it.job.closed || it.job.lost != nil {
		err := it.job.lost
		it.job.mu.Unlock()
		if err == nil {
			err = reason.New(reason.Closed, "job %s is closed", it.job.consumer.JobID)
		}
		it.finish(err)
		return
	}
	it.current = it.job.nextEpoch()
	it.job.mu.Unlock()
	it.pass = it.newPass()
	it.current.Activate(it.epochOptions())
}

// resumedAtEnd tells that the iteration began where a training loop had stopped, and that it had stopped at the end of a pass.
func (it *Iteration) resumedAtEnd() bool {
	resume := it.options.Resume
	return resume != nil && resume.Loaded && len(resume.Position.GetNext()) > 0 && it.stats.Elements+it.stats.Failed == 0
}

// newPass is the current epoch as positions know it.
func (it *Iteration) newPass() *resume.Pass {
	// An epoch that begins at a number without being gone on in is like any other.
	left := it.current.ResumeAt != nil && (it.options.Resume == nil || it.options.Resume.HandedOver)
	return &resume.Pass{Epoch: it.current, Iteration: it.number, Passes: it.passesDone, Elements: it.elements, HandedOver: left}
}

// epochOptions are the options for the current epoch. The next one is opened ahead of need unless
//   - a cache or a snapshot writes files: the next epoch would find those of this one half written or locked, and one that
//     nobody comes to read would keep its own locked;
//   - a cache keeps what passes a step: it is whole at the end of this epoch, and the next one would begin without it;
//   - this is the last pass of a repeat(n) that was taken off the graph: whoever says how many passes there are has had them.
//
// Whether another pass follows the only one of a plan is known to nobody: a repeat() behind distribute(), or another `for`,
// asks for it when this one is over. It is opened, since a pass that is never read costs one element on each worker, and one
// that is opened when it is asked for costs the trainer a wait.
func (it *Iteration) epochOptions() epoch.Options {
	plan := it.job.consumer.Plan
	options := epoch.Options{
		MaxOutstandingBytes: it.options.MaxOutstandingBytes, Compression: it.options.Compression, Protocol: it.options.Protocol,
		Deterministic: it.options.Deterministic, NoPrefetch: it.options.NoPrefetch,
	}
	if plan.GetWritesFiles() || plan.GetCache() != nil || plan.GetRepeat() > 1 && it.passesAfter == 0 {
		options.NoPrefetch = true
	}
	return options
}

// retire closes the current epoch, takes over its counters, and tells how many of its elements were taken. it.mu is held.
func (it *Iteration) retire() (taken uint64) {
	taken, counters := it.current.Retire()
	it.stats.add(counters)
	return taken
}

// finish ends the iteration with an error or without. it.mu is held.
func (it *Iteration) finish(err error) {
	it.ended, it.endErr = true, err
	it.retire()
	it.job.remove(it)
}

// alone is true when this iteration gets all of a pass.
func (it *Iteration) alone() bool {
	return !it.job.consumer.Shared() && it.job.consumer.Options.GetMode() != pecanv1.Mode_MODE_OFF
}
