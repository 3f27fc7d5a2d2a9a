package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// MaxKeptGraph bounds the graphs, in bytes, that a trainer keeps for dispatchers that may forget them.
const MaxKeptGraph = 64 << 20

// Dataset is what a dispatcher has to be told to know a dataset again.
type Dataset struct {
	Graph []byte
	Spec  *pecanv1.DatasetSpec
}

// Renewable is a job that is made anew when the dispatcher does not know it any more: a dispatcher without a work directory
// forgets everything in a restart, and every dispatcher forgets who was silent for long. An iteration of a private job goes on behind what it
// has handed out. Where others share the job, its place went with it: an iteration that has handed something out fails with
// JOB_UNKNOWN, and one that has not reads the new job, as every one after it does.
//
// It knows the positions of what its iterations handed out, and can begin at one of an earlier run of the trainer.
type Renewable struct {
	session *Session
	spec    JobSpec
	// dataset is nil where it is not at hand or too large to be kept. A dispatcher that keeps it over a restart may be given an empty
	// work directory.
	dataset *Dataset

	// loading is held by Load, before mu: a caller that was interrupted in one begins the next while that goes on.
	loading sync.Mutex

	mu  sync.Mutex
	job *Job
	// positions are those of iterations since the dataset was made, or the newest Load.
	positions *positions
	closed    bool
	// failing is the iteration that was told of an error last.
	failing *RenewableIteration
	// trying is closed when the attempt to make the job anew that is under way is over; err is how the last one ended.
	trying chan struct{}
	err    error
}

// CreateRenewable finds or creates a job. With a dataset, which may be nil, the job can be made anew also by a dispatcher
// that has lost the dataset, too.
func (s *Session) CreateRenewable(ctx context.Context, spec JobSpec, dataset *Dataset) (*Renewable, error) {
	job, err := s.CreateJob(ctx, spec)
	if err != nil {
		return nil, err
	}
	if dataset != nil && len(dataset.Graph) > MaxKeptGraph {
		dataset = nil
	}
	return &Renewable{session: s, spec: spec, dataset: dataset, job: job, positions: &positions{}}, nil
}

// Job is the newest one.
func (r *Renewable) Job() *Job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}

// Explain asks why the steps of the newest job's dataset run in the order in which they do.
func (r *Renewable) Explain(ctx context.Context) (*pecanv1.ExplainResponse, error) {
	return r.session.Explain(ctx, r.Job().ID())
}

// abandoned is how long an iteration that begins waits for the end of the one before it.
const abandoned = time.Second

// Open starts a pass over the dataset. It returns at once, as Job.Open does, but for when the iteration before it was told of an error in
// the place of its first element: TensorFlow may let go of an iterator a moment after the training loop has begun with the next one, and
// that one is to have its place.
func (r *Renewable) Open(options IterOptions) *RenewableIteration {
	r.mu.Lock()
	failing := r.failing
	r.mu.Unlock()
	if failing != nil && failing.idle() {
		timer := time.NewTimer(abandoned)
		defer timer.Stop()
		select {
		case <-failing.left:
		case <-timer.C:
		}
	}
	r.mu.Lock()
	job := r.job
	options.positions = r.positions
	r.mu.Unlock()
	options.Resume = options.positions.resume()
	return &RenewableIteration{home: r, options: options, job: job, it: job.Open(options),
		closed: make(chan struct{}), left: make(chan struct{})}
}

// Close ends the job, and keeps another one from being made. Idempotent.
func (r *Renewable) Close() error {
	r.mu.Lock()
	r.closed = true
	job := r.job
	r.mu.Unlock()
	return job.Close()
}

// renew has a lost job made anew, in the background and once for all who ask; the channel is closed when that is over.
func (r *Renewable) renew(lost *Job) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trying != nil {
		return r.trying
	}
	over := make(chan struct{})
	if r.job != lost || r.closed || r.session.link.check() != nil {
		close(over)
		return over
	}
	r.trying = over
	r.session.link.Go(func() {
		fresh, err := r.again(lost)
		r.mu.Lock()
		if r.trying, r.err = nil, err; err == nil {
			r.job = fresh
		}
		closed := r.closed
		r.mu.Unlock()
		close(over)
		if err != nil {
			return
		}
		lost.part()
		if closed {
			fresh.shut()
		}
	})
	return over
}

// renewing is true while a job is being made that takes the place of the lost one.
func (r *Renewable) renewing(lost *Job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trying != nil && r.job == lost
}

// again makes the job anew.
func (r *Renewable) again(lost *Job) (*Job, error) {
	s := r.session
	spec := r.spec
	if !lost.consumer.shared() {
		// What comes has to go with what was handed out, whose seed the dispatcher chose.
		spec = spec.seeded(lost.consumer.Options.GetSeed())
	}
	r.mu.Lock()
	positions := r.positions
	r.mu.Unlock()
	fresh, err := r.create(s.link.Context(), spec)
	if err != nil {
		return nil, err
	}
	if fresh.consumer.Plan.GetHash() != lost.consumer.Plan.GetHash() {
		fresh.shut()
		return nil, reason.New(reason.JobUnknown, "the dispatcher at %s lost job %s, and divides its dataset in another way now: apply "+
			"pecan.distribute() again to start a new job", s.link.Target(), lost.consumer.JobID)
	}
	if resumable(fresh.consumer) == nil {
		// The epochs that were had stay behind: the next one is not the first once more, with its order and its values.
		fresh.from = max(positions.following(), lost.behind())
	}
	s.link.Log().Warn("the dispatcher did not know a job any more, it was made anew", "dispatcher", s.link.Target(), "lost", lost.consumer.JobID, "job", fresh.consumer.JobID)
	return fresh, nil
}

// create makes a job; the dataset is registered anew where the dispatcher does not know it any more.
func (r *Renewable) create(ctx context.Context, spec JobSpec) (*Job, error) {
	job, err := r.session.CreateJob(ctx, spec)
	if !reason.Is(err, reason.DatasetUnknown) || r.dataset == nil {
		return job, err
	}
	if _, _, err := r.session.RegisterDataset(ctx, r.dataset.Graph, r.dataset.Spec, r.spec.DatasetID); err != nil {
		return nil, err
	}
	return r.session.CreateJob(ctx, spec)
}

// RenewableIteration is an Iteration of a job that may be made anew.
type RenewableIteration struct {
	home    *Renewable
	options IterOptions
	closed  chan struct{}
	// left is closed when whoever begins next finds its place, if it leaves one.
	left chan struct{}

	mu     sync.Mutex
	shutDo bool
	job    *Job
	it     *Iteration
}

// NextElement is Iteration's.
func (i *RenewableIteration) NextElement(wait time.Duration) (*Rows, Status, error) {
	return i.told(i.next(wait, func(it *Iteration) (*Rows, Status, error) { return it.NextElement(wait) }))
}

// NextBlock is Iteration's.
func (i *RenewableIteration) NextBlock(max int, wait time.Duration) (*Rows, Status, error) {
	return i.told(i.next(wait, func(it *Iteration) (*Rows, Status, error) { return it.NextBlock(max, wait) }))
}

// told notes that an error is what this iteration hands out.
func (i *RenewableIteration) told(rows *Rows, status Status, err error) (*Rows, Status, error) {
	if status == Failed || status == Broken {
		i.home.mu.Lock()
		i.home.failing = i
		i.home.mu.Unlock()
	}
	return rows, status, err
}

// forget ends the wait of who begins next.
func (i *RenewableIteration) forget() {
	i.home.mu.Lock()
	if i.home.failing == i {
		i.home.failing = nil
	}
	i.home.mu.Unlock()
	close(i.left)
}

// idle is true while nothing was handed out but errors that are no element's, so that its place may be left to another one.
func (i *RenewableIteration) idle() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.shutDo && i.it.unused() != nil
}

func (i *RenewableIteration) next(wait time.Duration, take func(*Iteration) (*Rows, Status, error)) (*Rows, Status, error) {
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
		if resume = it.Where(); resume == nil || job.consumer.shared() || job.consumer.Plan.GetNumStreams() == 0 {
			return nil, Broken, err
		}
	} else if resume == nil {
		resume = it.unused()
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-i.home.renew(job):
	case <-i.closed:
		return nil, Broken, err
	case <-timer.C:
		return nil, NotYet, nil
	}
	if err := i.reopen(job, resume, err); isOutage(err) {
		// Whoever asks again has the job asked for again.
		return nil, Failed, err
	} else if err != nil {
		return nil, Broken, err
	}
	return nil, NotYet, nil
}

// reopen goes on with the job that took the place of the lost one, at the place to resume at, or gives the error that there is none.
func (i *RenewableIteration) reopen(lost *Job, resume *Resume, why error) error {
	i.home.mu.Lock()
	fresh, err := i.home.job, i.home.err
	i.home.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.job != lost:
		// Another consumer of this iteration was faster.
		return nil
	case fresh == lost && err == nil || i.shutDo:
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
func (i *RenewableIteration) Waiting() (why string, computing bool) {
	i.mu.Lock()
	it, job := i.it, i.job
	i.mu.Unlock()
	if job.session.link.checkFork() == nil && i.home.renewing(job) {
		return fmt.Sprintf("the dispatcher at %s does not know job %s any more, it is being made anew", job.session.link.Target(), job.consumer.JobID), false
	}
	return it.Waiting()
}

// Close is Iteration's. Who had handed out nothing leaves its place to the next iteration: a training loop that was told of an outage
// before its first element and begins again has left out nothing.
func (i *RenewableIteration) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	first := !i.shutDo
	if first {
		i.shutDo = true
		close(i.closed)
		defer i.forget()
	}
	if err := i.it.Close(); err != nil || !first {
		return err
	}
	if place := i.it.unused(); place != nil {
		i.options.positions.leave(i.it.number, place)
	}
	return nil
}
