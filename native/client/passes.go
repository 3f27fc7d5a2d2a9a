package client

import (
	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// nextEpoch adopts the pass that was opened ahead, or opens it now. j.mu is held.
func (j *Job) nextEpoch() *epoch.Epoch {
	ahead := j.prefetched
	j.prefetched = nil
	if ahead != nil && ahead.Failure() == nil {
		return ahead
	}
	if ahead != nil {
		ahead.Close()
		return j.newEpoch(ahead.Pass, false, ahead.ResumeAt)
	}
	return j.newEpoch(nil, false, j.startAt())
}

// newEpoch opens a pass in the background, after the one that was begun last. j.mu is held.
func (j *Job) newEpoch(pass *uint64, ahead bool, start *pecanv1.Position) *epoch.Epoch {
	e := epoch.Open(j.consumer, j.lastOpening, pass, ahead, start)
	j.lastOpening = e.Answered
	return e
}

// NumberPass numbers a pass when it is about to be opened: one that the dispatcher refuses, or never hears of, does not count, or all those behind
// it would be ahead of what is open.
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

// startAt is where the next epoch begins if the dispatcher does not know its number. j.mu is held.
func (j *Job) startAt() *pecanv1.Position {
	if j.nextNumber == 0 {
		return nil
	}
	j.nextNumber++
	return &pecanv1.Position{Epoch: j.nextNumber - 1}
}

// NoteOpened notes which number an epoch has; begun: an iteration begins with it.
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

// numberAfter is the number behind the epochs that iterations began with.
func (j *Job) numberAfter() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(j.numbersSeen, j.nextNumber)
}

// Prefetch opens the next pass if that has not been done. It comes from a goroutine that reads, so it must not wait.
func (j *Job) Prefetch() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.lost != nil || j.prefetched != nil {
		return
	}
	j.prefetched = j.newEpoch(nil, true, j.startAt())
}

// finished notes how long a pass was, by which the end of the next one is foreseen.
func (j *Job) finished(elements uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastCount = int64(elements)
}

// Expected is how many elements a pass of this client probably has; -1 when that is not known.
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

// epochs are those that the dispatcher shall hear of.
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

// passes is what the heartbeat tells of the job, and whether there are passes of which the dispatcher has not answered yet that they are open.
func (j *Job) passes() (passes []*pecanv1.ClientHeartbeatRequest_Pass, opening bool) {
	// The last one of a shared job waits for those before it: they may be closed here already.
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
