package client

import (
	"fmt"

	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/resume"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// passesLeft returns how many passes come after the current one; -1 means infinitely many.
func (it *Iteration) passesLeft() int64 {
	repeat := it.job.consumer.Plan.GetRepeat()
	if repeat < 0 {
		return -1
	}
	return max(0, repeat-1-int64(it.passesDone))
}

// advance goes from an epoch that ended to the next one, or to the end. it.mu is held.
func (it *Iteration) advance() {
	// A resumed pass is partial: its length does not predict the next one's.
	resumed := resume.Partial(it.current.ResumeAt)
	endless := it.passesAfter < 0 && it.readsWholePass() && it.current.Empty() && !resumed && len(it.current.LeftRows()) == 0
	if !resumed {
		it.job.finished(it.current.Taken())
	}
	if !it.job.consumer.Carries() {
		it.retire()
	}
	switch {
	case it.passesAfter == 0 && it.resumedAtEnd() && it.tooFew() == nil:
		// TensorFlow's repeat() would take an empty first pass for the end of the dataset.
		if given := resume.Ended(it.current.ResumeAt) - resume.Ended(it.options.Resume.Position); given > 0 {
			it.job.session.link.Log().Warn(fmt.Sprintf("epoch %d has no elements left, because its remaining streams were abandoned: the next epoch begins",
				it.current.Number()), "job", it.job.consumer.JobID)
		}
		it.options.Resume, it.passesDone, it.elements = nil, 0, 0
		it.passesAfter = it.passesLeft()
	case it.passesAfter == 0 || endless:
		// An infinite repeat of an empty dataset is empty, as it is locally.
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
	next := it.job.nextEpoch(it.current)
	it.job.mu.Unlock()
	next.GoOn()
	it.retire()
	it.current = next
	it.pass = it.newPass()
	it.current.Activate(it.epochOptions())
}

// resumedAtEnd reports whether the iteration resumed at a position that was the end of a pass.
func (it *Iteration) resumedAtEnd() bool {
	from := it.options.Resume
	return from != nil && from.Loaded && resume.Partial(from.Position) && it.stats.Elements+it.stats.Failed == 0
}

// newPass describes the current epoch for the resume log.
func (it *Iteration) newPass() *resume.Pass {
	// An epoch that begins at a number, without a resumed position in it, is like any other.
	left := it.current.ResumeAt != nil && (it.options.Resume == nil || it.options.Resume.HandedOver)
	return &resume.Pass{Epoch: it.current, Iteration: it.number, Passes: it.passesDone, Elements: it.elements, HandedOver: left}
}

// epochOptions returns the options of the current epoch. The client prefetches the next epoch, except in three cases:
//
//   - A cache or a snapshot writes files. The next epoch would find half-written or locked files, and an epoch that nobody
//     reads would keep its own files locked.
//   - The job uses pecan.cache(). While an epoch writes the cache, the next epoch would begin without it. The exception
//     also holds when the cache is complete.
//   - This is the last repetition of a repeat(n) that the plan removed from the graph. No pass follows.
//
// After the only pass of a plan another one may follow. A repeat() downstream of distribute(), or another `for` loop,
// requests it when this pass has ended. The client prefetches that pass too. An unread pass costs one element on each
// worker, and a pass that is opened on request costs the trainer a wait.
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

// retire closes the current epoch and adds its counters to the iteration's, once. it.mu is held.
func (it *Iteration) retire() { it.stats.add(it.current.Retire()) }

// finish ends the iteration, with an error or without. it.mu is held.
func (it *Iteration) finish(err error) {
	it.ended, it.endErr = true, err
	it.retire()
	it.job.remove(it)
}

// readsWholePass reports whether this iteration reads the whole pass.
func (it *Iteration) readsWholePass() bool {
	return !it.job.consumer.Shared() && it.job.consumer.Options.GetMode() != pecanv1.Mode_MODE_OFF
}
