package client

import (
	"fmt"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/resume"
	"github.com/pecan-ml/pecan/proto/reason"
)

// RejoiningIteration is an Iteration of a job that the client may recreate.
type RejoiningIteration struct {
	home    *RejoiningJob
	options IterOptions
	closed  chan struct{}
	// left is closed when the next iteration can find the position of this one, if this one hands over a
	// position.
	left chan struct{}

	mu   sync.Mutex
	shut bool
	job  *Job
	it   *Iteration
}

// NextElement is like Iteration.NextElement.
func (i *RejoiningIteration) NextElement(wait time.Duration) (*element.Elements, Status, error) {
	return i.noteError(i.next(wait, func(it *Iteration) (*element.Elements, Status, error) { return it.NextElement(wait) }))
}

// NextBlock is like Iteration.NextBlock.
func (i *RejoiningIteration) NextBlock(max int, wait time.Duration) (*element.Elements, Status, error) {
	return i.noteError(i.next(wait, func(it *Iteration) (*element.Elements, Status, error) { return it.NextBlock(max, wait) }))
}

// noteError records that this iteration returned an error.
func (i *RejoiningIteration) noteError(elements *element.Elements, status Status, err error) (*element.Elements, Status, error) {
	if status == Failed || status == Broken {
		i.home.mu.Lock()
		i.home.failing = i
		i.home.mu.Unlock()
	}
	return elements, status, err
}

// leave ends the wait of the next iteration's Open.
func (i *RejoiningIteration) leave() {
	i.home.mu.Lock()
	if i.home.failing == i {
		i.home.failing = nil
	}
	i.home.mu.Unlock()
	close(i.left)
}

// idle reports whether the iteration returned nothing but errors that belong to no element. Its position may
// then be handed over.
func (i *RejoiningIteration) idle() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.shut && i.it.handOverPoint() != nil
}

// next takes elements from the iteration. If the dispatcher has lost the job, it rejoins and continues after the elements that were
// taken. A shared job that has returned elements cannot continue, so the error stays.
func (i *RejoiningIteration) next(wait time.Duration, take func(*Iteration) (*element.Elements, Status, error)) (*element.Elements, Status, error) {
	i.mu.Lock()
	it, job := i.it, i.job
	i.mu.Unlock()
	end := time.Now().Add(wait)
	elements, status, err := take(it)
	if status != Broken || !reason.Is(err, reason.JobUnknown) {
		return elements, status, err
	}
	resume := i.options.Resume
	if stats := it.Stats(); stats.Elements > 0 || stats.Failed > 0 {
		if resume = it.Where(); resume == nil || job.consumer.Shared() || job.consumer.Plan.GetNumStreams() == 0 {
			return nil, Broken, err
		}
	} else if resume == nil {
		resume = it.handOverPoint()
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-i.home.rejoin(job):
	case <-i.closed:
		return nil, Broken, err
	case <-timer.C:
		return nil, NotYet, nil
	}
	if err := i.reopen(job, resume, err); control.IsOutage(err) {
		// The next call tries to recreate the job again.
		return nil, Failed, err
	} else if err != nil {
		return nil, Broken, err
	}
	return nil, NotYet, nil
}

// reopen continues with the job that replaced the lost one, at the point to resume from. It returns an error
// if no job replaced it.
func (i *RejoiningIteration) reopen(lost *Job, resume *resume.Point, why error) error {
	i.home.mu.Lock()
	fresh, err := i.home.job, i.home.err
	i.home.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.job != lost:
		// Another consumer of this iteration was faster.
		return nil
	case fresh == lost && err == nil || i.shut:
		return why
	case fresh == lost:
		return err
	}
	i.it.shut()
	i.options.Resume = resume
	i.job, i.it = fresh, fresh.Open(i.options)
	return nil
}

// Waiting is like Iteration.Waiting. While the job is being recreated it says so.
func (i *RejoiningIteration) Waiting() (why string, computing bool) {
	i.mu.Lock()
	it, job := i.it, i.job
	i.mu.Unlock()
	if job.session.link.CheckFork() == nil && i.home.rejoining(job) {
		return fmt.Sprintf("the dispatcher at %s does not know job %s any more, and the client is recreating it", job.session.link.Target(), job.consumer.JobID), false
	}
	return it.Waiting()
}

// Close is like Iteration.Close. An iteration without deliveries hands its position over to the next one. A training loop
// that failed in an outage before its first element, and starts again, then skips nothing.
func (i *RejoiningIteration) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	first := !i.shut
	if first {
		i.shut = true
		close(i.closed)
		defer i.leave()
	}
	if err := i.it.Close(); err != nil || !first {
		return err
	}
	if place := i.it.handOverPoint(); place != nil {
		i.options.log.HandOver(i.it.number, place)
	}
	return nil
}
