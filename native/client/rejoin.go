package client

import (
	"context"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/client/resume"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// MaxRetainedGraph bounds the graphs, in bytes, that a trainer keeps for dispatchers that may forget them.
const MaxRetainedGraph = 64 << 20

// Dataset is what a dispatcher has to be told to know a dataset again.
type Dataset struct {
	Graph []byte
	Spec  *pecanv1.DatasetSpec
}

// RejoiningJob is a job that is made anew when the dispatcher does not know it any more: a dispatcher without a work directory
// forgets everything in a restart, and every dispatcher forgets who was silent for long. An iteration of a private job goes on behind what it
// has handed out. Where others share the job, its place went with it: an iteration that has handed something out fails with
// JOB_UNKNOWN, and one that has not reads the new job, as every one after it does.
//
// It knows the positions of what its iterations handed out, and can begin at one of an earlier run of the trainer.
type RejoiningJob struct {
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
	log    *resume.Log
	closed bool
	// failing is the iteration that was told of an error last.
	failing *RejoiningIteration
	// trying is closed when the attempt to make the job anew that is under way is over; err is how the last one ended.
	trying chan struct{}
	err    error
}

// CreateRejoiningJob finds or creates a job. With a dataset, which may be nil, the job can be made anew also by a dispatcher
// that has lost the dataset, too.
func (s *Session) CreateRejoiningJob(ctx context.Context, spec JobSpec, dataset *Dataset) (*RejoiningJob, error) {
	job, err := s.CreateJob(ctx, spec)
	if err != nil {
		return nil, err
	}
	if dataset != nil && len(dataset.Graph) > MaxRetainedGraph {
		dataset = nil
	}
	return &RejoiningJob{session: s, spec: spec, dataset: dataset, job: job, log: &resume.Log{}}, nil
}

// Job is the newest one.
func (r *RejoiningJob) Job() *Job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}

// Explain asks why the steps of the newest job's dataset run in the order in which they do.
func (r *RejoiningJob) Explain(ctx context.Context) (*pecanv1.ExplainResponse, error) {
	return r.session.Explain(ctx, r.Job().ID())
}

// handOverTime is how long an iteration that begins waits for the end of the one before it.
const handOverTime = time.Second

// Open starts a pass over the dataset. It returns at once, as Job.Open does, but for when the iteration before it was told of an error in
// the place of its first element: TensorFlow may let go of an iterator a moment after the training loop has begun with the next one, and
// that one is to have its place.
func (r *RejoiningJob) Open(options IterOptions) *RejoiningIteration {
	r.mu.Lock()
	failing := r.failing
	r.mu.Unlock()
	if failing != nil && failing.idle() {
		timer := time.NewTimer(handOverTime)
		defer timer.Stop()
		select {
		case <-failing.left:
		case <-timer.C:
		}
	}
	r.mu.Lock()
	job := r.job
	options.log = r.log
	r.mu.Unlock()
	options.Resume = options.log.TakePoint()
	return &RejoiningIteration{home: r, options: options, job: job, it: job.Open(options),
		closed: make(chan struct{}), left: make(chan struct{})}
}

// Close ends the job, and keeps another one from being made. Idempotent.
func (r *RejoiningJob) Close() error {
	r.mu.Lock()
	r.closed = true
	job := r.job
	r.mu.Unlock()
	return job.Close()
}

// rejoin has a lost job made anew, in the background and once for all who ask; the channel is closed when that is over.
func (r *RejoiningJob) rejoin(lost *Job) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trying != nil {
		return r.trying
	}
	over := make(chan struct{})
	if r.job != lost || r.closed || r.session.link.Check() != nil {
		close(over)
		return over
	}
	r.trying = over
	r.session.link.Go(func() {
		fresh, err := r.recreate(lost)
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
		lost.retire()
		if closed {
			fresh.shut()
		}
	})
	return over
}

// rejoining is true while a job is being made that takes the place of the lost one.
func (r *RejoiningJob) rejoining(lost *Job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trying != nil && r.job == lost
}

// recreate makes the job anew.
func (r *RejoiningJob) recreate(lost *Job) (*Job, error) {
	s := r.session
	spec := r.spec
	if !lost.consumer.Shared() {
		// What comes has to go with what was handed out, whose seed the dispatcher chose.
		spec = spec.seeded(lost.consumer.Options.GetSeed())
	}
	r.mu.Lock()
	positions := r.log
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
	if resume.CheckResumable(fresh.consumer) == nil {
		// The epochs that were had stay behind: the next one is not the first once more, with its order and its values.
		fresh.nextNumber = max(positions.NextEpoch(), lost.numberAfter())
	}
	s.link.Log().Warn("the dispatcher did not know a job any more, it was made anew", "dispatcher", s.link.Target(), "lost", lost.consumer.JobID, "job", fresh.consumer.JobID)
	return fresh, nil
}

// create makes a job; the dataset is registered anew where the dispatcher does not know it any more.
func (r *RejoiningJob) create(ctx context.Context, spec JobSpec) (*Job, error) {
	job, err := r.session.CreateJob(ctx, spec)
	if !reason.Is(err, reason.DatasetUnknown) || r.dataset == nil {
		return job, err
	}
	if _, _, err := r.session.RegisterDataset(ctx, r.dataset.Graph, r.dataset.Spec, r.spec.DatasetID); err != nil {
		return nil, err
	}
	return r.session.CreateJob(ctx, spec)
}
