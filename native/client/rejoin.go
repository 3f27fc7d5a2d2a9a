package client

import (
	"context"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/client/resume"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// MaxRetainedGraph limits the size in bytes of a graph that a trainer keeps for a dispatcher that may lose
// it.
const MaxRetainedGraph = 64 << 20

// Dataset has the inputs of a registration, so that it can be repeated.
type Dataset struct {
	Graph []byte
	Spec  *pecanv1.DatasetSpec
}

// RejoiningJob is a job that the client recreates when the dispatcher has lost it. A dispatcher without a
// work directory loses all jobs in a restart, and every dispatcher removes clients that were silent for long.
// An iteration of a private job continues after the elements that it returned. The position in a shared job
// is lost with the job: an iteration that has returned elements fails with JOB_UNKNOWN. An iteration that has
// returned none reads the new job, as all later ones do.
//
// A RejoiningJob also knows the positions of the elements that its iterations returned. It can begin at a position of an
// earlier run of the trainer.
type RejoiningJob struct {
	session *Session
	spec    JobSpec
	// dataset is nil if it is not available or too large to keep. It is kept for durable dispatchers too,
	// because one may restart with an empty work directory.
	dataset *Dataset

	// loading is held by Load, before mu. An interrupted caller may call Load again while the first call
	// still runs.
	loading sync.Mutex

	mu  sync.Mutex
	job *Job
	// log holds the positions of iterations since the dataset was created or a state was loaded.
	log    *resume.Log
	closed bool
	// failing is the iteration that returned an error last.
	failing *RejoiningIteration
	// trying is closed when the running attempt to recreate the job has ended. err is the result of the last
	// attempt.
	trying chan struct{}
	err    error
}

// CreateRejoiningJob finds or creates a job. With a dataset, which may be nil, the job can also be recreated
// at a dispatcher that has lost the dataset.
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

// Job returns the newest job.
func (r *RejoiningJob) Job() *Job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}

// Explain returns why the steps of the newest job's dataset run in their order.
func (r *RejoiningJob) Explain(ctx context.Context) (*pecanv1.ExplainResponse, error) {
	return r.session.Explain(ctx, r.Job().ID())
}

// handOverTime is how long a new iteration waits for the previous one to close.
const handOverTime = time.Second

// Open starts an iteration over the dataset. Like Job.Open it returns at once, with one exception: the previous
// iteration returned an error before its first element. TensorFlow may release that iterator shortly after the training
// loop has created the next one, which must start at the same position. Open therefore waits for the release for a
// short time.
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

// Close ends the job, and prevents that another one is created. Idempotent.
func (r *RejoiningJob) Close() error {
	r.mu.Lock()
	r.closed = true
	job := r.job
	r.mu.Unlock()
	return job.Close()
}

// rejoin recreates a lost job in the background, once for all callers. The channel is closed when the attempt
// has ended.
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

// rejoining reports whether a replacement of the lost job is being created.
func (r *RejoiningJob) rejoining(lost *Job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trying != nil && r.job == lost
}

// recreate creates the replacement of a lost job.
func (r *RejoiningJob) recreate(lost *Job) (*Job, error) {
	s := r.session
	spec := r.spec
	if !lost.consumer.Shared() {
		// The remaining elements must match those that were returned. The new job therefore uses the seed and the number of
		// streams that the dispatcher chose for the lost one.
		spec = spec.seeded(lost.consumer.Options.GetSeed(), lost.consumer.Plan.GetNumStreams(), lost.consumer.Plan.GetGroup())
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
		return nil, reason.New(reason.JobUnknown, "the dispatcher at %s lost job %s, and plans its dataset differently now: apply "+
			"pecan.distribute() again to start a new job", s.link.Target(), lost.consumer.JobID)
	}
	if resume.CheckResumable(fresh.consumer) == nil {
		// The new job continues the numbers of the lost job's epochs. With the number of an earlier epoch, an epoch
		// would repeat that one's order and values.
		fresh.nextNumber = max(positions.NextEpoch(), lost.numberAfter())
	}
	s.link.Log().Warn("the dispatcher had lost a job, and the client recreated it", "dispatcher", s.link.Target(), "lost", lost.consumer.JobID, "job", fresh.consumer.JobID)
	return fresh, nil
}

// create creates a job. It registers the dataset again if the dispatcher has lost it.
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
