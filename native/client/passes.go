package client

import (
	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/resume"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Open starts an iteration over the dataset and returns at once. The work continues in the background, and Next returns
// its errors.
func (j *Job) Open(options IterOptions) *Iteration {
	it := newIteration(j, options)
	if err := options.Validate(); err != nil {
		it.broken = err
		return it
	}
	if err := j.session.link.Check(); err != nil {
		it.broken = err
		return it
	}
	j.mu.Lock()
	switch {
	case j.closed:
		it.broken = reason.New(reason.Closed, "job %s is closed", j.consumer.JobID)
	case j.lost != nil:
		it.broken = j.lost
	case !it.ended:
		j.iterations[it] = struct{}{}
		if options.Resume != nil {
			it.current = j.newEpoch(nil, false, resume.StartPosition(j.consumer, options.Resume.Position), nil)
		} else {
			it.current = j.nextEpoch(nil)
		}
		it.pass = it.newPass()
	}
	j.mu.Unlock()
	if it.current != nil {
		it.current.Activate(it.epochOptions())
	}
	return it
}

// nextEpoch returns the prefetched epoch, or opens the next one now. after is the epoch that the iteration has read
// before; nil for its first one. In a plan with a carry, the batches of that epoch go on in the new one. j.mu is held.
func (j *Job) nextEpoch(after *epoch.Epoch) *epoch.Epoch {
	after = j.goesOn(after)
	ahead := j.prefetched
	j.prefetched = nil
	if ahead != nil && !ahead.GoesOnAfter(after) {
		// Another iteration was about to read it.
		ahead.Close()
		ahead = nil
	}
	if ahead != nil && ahead.Failure() == nil {
		return ahead
	}
	if ahead != nil {
		ahead.Close()
		return j.newEpoch(ahead.Pass, false, ahead.ResumeAt, after)
	}
	return j.newEpoch(nil, false, j.startAt(after), after)
}

// goesOn returns the epoch before, if its batches go on in the next one, else nil.
func (j *Job) goesOn(before *epoch.Epoch) *epoch.Epoch {
	if !j.consumer.Carries() {
		return nil
	}
	return before
}

// newEpoch opens an epoch in the background, after the newest one. j.mu is held.
func (j *Job) newEpoch(pass *uint64, ahead bool, start *pecanv1.Position, after *epoch.Epoch) *epoch.Epoch {
	e := epoch.Open(j.consumer, j.lastOpening, pass, ahead, start, after)
	j.lastOpening = e.Answered
	return e
}

// NumberPass numbers a pass just before it is opened. A pass that the dispatcher refuses or never receives
// does not count. If it did, all later passes would have numbers above those that are open.
func (j *Job) NumberPass(e *epoch.Epoch) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Pass == nil {
		pass := j.nextPass
		e.Pass = &pass
	}
	return *e.Pass
}

// CountPass counts a pass that is open.
func (j *Job) CountPass(e *epoch.Epoch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.nextPass = max(j.nextPass, *e.Pass+1)
}

// startAt returns where the next epoch begins if the dispatcher does not know its number. The dispatcher knows the
// number of an epoch in which batches go on. j.mu is held.
func (j *Job) startAt(after *epoch.Epoch) *pecanv1.Position {
	if j.nextNumber == 0 || after != nil {
		return nil
	}
	j.nextNumber++
	return &pecanv1.Position{Epoch: j.nextNumber - 1}
}

// NoteOpened records the number of an epoch. begun is true if an iteration begins with it.
func (j *Job) NoteOpened(number uint64, begun bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if number+1 >= j.nextNumber {
		j.nextNumber = 0
	}
	if begun {
		j.numbersSeen = max(j.numbersSeen, number+1)
	}
}

// numberAfter returns the number after all epochs that iterations began with.
func (j *Job) numberAfter() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(j.numbersSeen, j.nextNumber)
}

// Prefetch opens the epoch after another one if it is not open yet. The goroutine that reads a connection calls it, so
// it must not block.
func (j *Job) Prefetch(after *epoch.Epoch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.lost != nil || j.prefetched != nil {
		return
	}
	after = j.goesOn(after)
	j.prefetched = j.newEpoch(nil, true, j.startAt(after), after)
}

// finished records how many elements a pass had. The end of the next one is predicted from that.
func (j *Job) finished(elements uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastCount = int64(elements)
}

// Expected returns how many elements a pass of this client probably has; -1 if unknown.
func (j *Job) Expected() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastCount >= 0 {
		return j.lastCount
	}
	if j.consumer.Plan.GetCardinality() >= 0 && !j.consumer.Shared() && j.consumer.Options.GetMode() != pecanv1.Mode_MODE_OFF {
		return j.consumer.Plan.GetCardinality()
	}
	return -1
}

// epochs returns the epochs that heartbeats report.
func (j *Job) epochs() []*epoch.Epoch {
	j.mu.Lock()
	iterations := make([]*Iteration, 0, len(j.iterations))
	for it := range j.iterations {
		iterations = append(iterations, it)
	}
	var epochs []*epoch.Epoch
	if j.prefetched != nil {
		epochs = append(epochs, j.prefetched)
	}
	j.mu.Unlock()
	for _, it := range iterations {
		if e := it.epoch(); e != nil {
			epochs = append(epochs, e)
		}
	}
	return epochs
}

// passes returns what the heartbeat reports of the job, and whether the dispatcher has not yet answered the
// opening of some pass.
func (j *Job) passes() (passes []*pecanv1.ClientHeartbeatRequest_Pass, opening bool) {
	// The newest pass of a shared job is opened after all earlier ones, which may be closed here already.
	j.mu.Lock()
	last := j.lastOpening
	j.mu.Unlock()
	opening = epoch.Unanswered(last)
	for _, e := range j.epochs() {
		opening = opening || epoch.Unanswered(e.Answered)
		if pass := e.Report(false); pass != nil {
			passes = append(passes, pass)
		}
	}
	for _, e := range j.consumer.Leaving.List() {
		if pass := e.Report(true); pass != nil {
			passes = append(passes, pass)
		}
	}
	return passes, opening
}
