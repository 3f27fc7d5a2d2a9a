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

// RejoiningIteration is an Iteration of a job that may be made anew.
type RejoiningIteration struct {
	home    *RejoiningJob
	options IterOptions
	closed  chan struct{}
	// left is closed when whoever begins next finds its place, if it leaves one.
	left chan struct{}

	mu   sync.Mutex
	shut bool
	job  *Job
	it   *Iteration
}

// NextElement is Iteration's.
func (i *RejoiningIteration) NextElement(wait time.Duration) (*element.Rows, Status, error) {
	return i.noteError(i.next(wait, func(it *Iteration) (*element.Rows, Status, error) { return it.NextElement(wait) }))
}

// NextBlock is Iteration's.
func (i *RejoiningIteration) NextBlock(max int, wait time.Duration) (*element.Rows, Status, error) {
	return i.noteError(i.next(wait, func(it *Iteration) (*element.Rows, Status, error) { return it.NextBlock(max, wait) }))
}

// noteError notes that an error is what this iteration hands out.
func (i *RejoiningIteration) noteError(rows *element.Rows, status Status, err error) (*element.Rows, Status, error) {
	if status == Failed || status == Broken {
		i.home.mu.Lock()
		i.home.failing = i
		i.home.mu.Unlock()
	}
	return rows, status, err
}

// leave ends the wait of who begins next.
func (i *RejoiningIteration) leave() {
	i.home.mu.Lock()
	if i.home.failing == i {
		i.home.failing = nil
	}
	i.home.mu.Unlock()
	close(i.left)
}

// idle is true while nothing was handed out but errors that are no element's, so that its place may be left to another one.
func (i *RejoiningIteration) idle() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.shut && i.it.HandOverPoint() != nil
}

func (i *RejoiningIteration) next(wait time.Duration, take func(*Iteration) (*element.Rows, Status, error)) (*element.Rows, Status, error) {
	i.mu.Lock()
	it, job := i.it, i.job
	i.mu.Unlock()
	end := time.Now().Add(wait)
	rows, status, err := take(it)
	if status != Broken || !reason.Is(err, reason.JobUnknown) {
		return rows, status, err
	}
	resume := i.options.Resume
	if stats := it.Stats(); stats.Elements > 0 || stats.Failed > 0 {
		if resume = it.Where(); resume == nil || job.consumer.Shared() || job.consumer.Plan.GetNumStreams() == 0 {
			return nil, Broken, err
		}
	} else if resume == nil {
		resume = it.HandOverPoint()
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
		// Whoever asks again has the job asked for again.
		return nil, Failed, err
	} else if err != nil {
		return nil, Broken, err
	}
	return nil, NotYet, nil
}

// reopen goes on with the job that took the place of the lost one, at the place to resume at, or gives the error that there is none.
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

// Waiting is Iteration's; while the job is made anew it says that.
func (i *RejoiningIteration) Waiting() (why string, computing bool) {
	i.mu.Lock()
	it, job := i.it, i.job
	i.mu.Unlock()
	if job.session.link.CheckFork() == nil && i.home.rejoining(job) {
		return fmt.Sprintf("the dispatcher at %s does not know job %s any more, it is being made anew", job.session.link.Target(), job.consumer.JobID), false
	}
	return it.Waiting()
}

// Close is Iteration's. Who had handed out nothing leaves its place to the next iteration: a training loop that was told of an outage
// before its first element and begins again has left out nothing.
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
	if place := i.it.HandOverPoint(); place != nil {
		i.options.log.HandOver(i.it.number, place)
	}
	return nil
}
