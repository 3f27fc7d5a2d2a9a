package client

import (
	"context"
	"os"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// JobSpec says which job is wanted.
type JobSpec struct {
	DatasetID string
	// Name shares the job with every trainer that gives the same one; empty makes a job of this session alone.
	Name    string
	Options *pecanv1.JobOptions
}

// seeded is the same with a seed of that number.
func (s JobSpec) seeded(seed uint64) JobSpec {
	options := &pecanv1.JobOptions{}
	proto.Merge(options, s.Options)
	s.Options = options
	s.Options.Seed, s.Options.SeedSet = seed, true
	return s
}

// Job is one consumption of a dataset.
type Job struct {
	session *Session
	// consumer is one of its own for each job object, so that two of one name in one process share the job as two processes would, and
	// one that is closed is gone at once.
	consumer *Consumer
	durable  bool
	created  bool
	workers  int

	mu sync.Mutex
	// timeoutS is how many seconds without a heartbeat the dispatcher forgets this consumer after, as it told last.
	timeoutS float64
	// lost is set when the dispatcher does not know the job any more.
	lost   error
	closed bool
	// nextPass numbers the passes of this job's iterators over it that the dispatcher has opened.
	nextPass uint64
	// opening is closed when the epoch that was begun last is open, or will never be.
	opening chan struct{}
	// ahead is the next pass, opened before it is asked for.
	ahead *epoch
	// from is the number of the next epoch of a job that took the place of a lost one, whose dispatcher would count from 0. It is given with
	// every epoch that begins nowhere else until one of that number is open: the dispatcher counts on from there. had is the number behind
	// the epochs that iterations began with.
	from, had  uint64
	iterations map[*Iteration]struct{}
	// lastCount is how many elements the last pass that was read to its end had; -1 before.
	lastCount int64
}

// CreateJob finds the job of that name or creates one.
func (s *Session) CreateJob(ctx context.Context, spec JobSpec) (*Job, error) {
	request := &pecanv1.CreateJobRequest{
		RequestId: uuid.NewString(), ClientId: uuid.NewString(), DatasetId: spec.DatasetID, JobName: spec.Name, Options: spec.Options,
		ClientHost: s.config.Host, ClientPid: int64(os.Getpid()),
	}
	var answer *pecanv1.CreateJobResponse
	var asked moment
	err := s.link.ask(ctx, "create the job at", func(ctx context.Context) error {
		var err error
		asked = now()
		answer, err = s.link.API().CreateJob(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	job := &Job{
		session: s, durable: answer.GetDurable(), created: answer.GetCreated(), workers: int(answer.GetWorkers()), timeoutS: answer.GetClientTimeoutS(),
		iterations: map[*Iteration]struct{}{}, lastCount: -1,
	}
	job.consumer = &Consumer{
		Link: s.link, Workers: s.workers, Pool: s.pool, Job: job, JobID: answer.GetJobId(), ClientID: request.GetClientId(), Request: request,
		Plan: answer.GetPlan(), Options: answer.GetOptions(),
	}
	job.consumer.heardAt(asked, job.timeoutS)
	if job.consumer.Plan == nil {
		job.consumer.Plan = &pecanv1.Plan{Repeat: 1, Cardinality: -2, AssertedCardinality: -2}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, reason.New(reason.Closed, "create the job: the session was closed meanwhile")
	}
	// A dispatcher that was started anew may be of another cluster: workers answer nobody who takes them for those of the old one.
	s.link.setCluster(answer.GetClusterId())
	s.jobs[job] = struct{}{}
	return job, nil
}

// ID is the dispatcher's name of the job.
func (j *Job) ID() string { return j.consumer.JobID }

// ClientID is the random id under which the dispatcher knows this consumer of the job.
func (j *Job) ClientID() string { return j.consumer.ClientID }

// Plan says how the dataset is divided into streams, and why.
func (j *Job) Plan() *pecanv1.Plan { return j.consumer.Plan }

// Options are the job's, with what the dispatcher filled in.
func (j *Job) Options() *pecanv1.JobOptions { return j.consumer.Options }

// Durable is true when the job outlives a restart of the dispatcher.
func (j *Job) Durable() bool { return j.durable }

// Created is false when the job was there already.
func (j *Job) Created() bool { return j.created }

// Workers is how many workers were registered when the job was created or found.
func (j *Job) Workers() int { return j.workers }

// Session is the session that the job belongs to.
func (j *Job) Session() *Session { return j.session }

// Open starts a pass over the dataset. It returns at once; the work goes on in the background, and what goes wrong
// comes out of Next.
func (j *Job) Open(options IterOptions) *Iteration {
	it := newIteration(j, options)
	if err := options.Validate(); err != nil {
		it.broken = err
		return it
	}
	if err := j.session.link.check(); err != nil {
		it.broken = err
		return it
	}
	j.mu.Lock()
	switch {
	case j.closed:
		it.broken = reason.New(reason.Closed, "job %s is closed", j.consumer.JobID)
	case j.lost != nil:
		it.broken = j.lost
	case !it.over:
		j.iterations[it] = struct{}{}
		if options.Resume != nil {
			it.current = j.newEpoch(nil, false, goOn(j.consumer, options.Resume.Position))
		} else {
			it.current = j.nextEpoch()
		}
		it.pass = it.newPass()
	}
	j.mu.Unlock()
	if it.current != nil {
		it.current.activate(it.epochOptions())
	}
	return it
}

// nextEpoch adopts the pass that was opened ahead, or opens it now. j.mu is held.
func (j *Job) nextEpoch() *epoch {
	ahead := j.ahead
	j.ahead = nil
	if ahead != nil && ahead.failure() == nil {
		return ahead
	}
	if ahead != nil {
		ahead.close()
		return j.newEpoch(ahead.pass, false, ahead.start)
	}
	return j.newEpoch(nil, false, j.start())
}

// newEpoch opens a pass in the background, after the one that was begun last. j.mu is held.
func (j *Job) newEpoch(pass *uint64, ahead bool, start *pecanv1.Position) *epoch {
	e := newEpoch(j.consumer, j.opening, pass, ahead, start)
	j.opening = e.answered
	return e
}

// NumberPass numbers a pass when it is about to be opened: one that the dispatcher refuses, or never hears of, does not count, or all those behind
// it would be ahead of what is open.
func (j *Job) NumberPass(e *epoch) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.pass == nil {
		pass := j.nextPass
		e.pass = &pass
	}
	return *e.pass
}

// CountPass counts a pass that is open.
func (j *Job) CountPass(e *epoch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.nextPass = max(j.nextPass, *e.pass+1)
}

// start is where the next epoch begins if the dispatcher does not know its number. j.mu is held.
func (j *Job) start() *pecanv1.Position {
	if j.from == 0 {
		return nil
	}
	j.from++
	return &pecanv1.Position{Epoch: j.from - 1}
}

// NoteOpened notes which number an epoch has; begun: an iteration begins with it.
func (j *Job) NoteOpened(number uint64, begun bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if number+1 >= j.from {
		j.from = 0
	}
	if begun {
		j.had = max(j.had, number+1)
	}
}

// behind is the number behind the epochs that iterations began with.
func (j *Job) behind() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(j.had, j.from)
}

// Prefetch opens the next pass if that has not been done. It comes from a goroutine that reads, so it must not wait.
func (j *Job) Prefetch() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.lost != nil || j.ahead != nil {
		return
	}
	j.ahead = j.newEpoch(nil, true, j.start())
}

// leave forgets an iteration that ended or was closed.
func (j *Job) leave(it *Iteration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.iterations, it)
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
	if j.consumer.Plan.GetCardinality() >= 0 && !j.consumer.shared() && j.consumer.Options.GetMode() != pecanv1.Mode_MODE_OFF {
		return j.consumer.Plan.GetCardinality()
	}
	return -1
}

// epochs are those that the dispatcher shall hear of.
func (j *Job) epochs() []*epoch {
	j.mu.Lock()
	iterations := make([]*Iteration, 0, len(j.iterations))
	for it := range j.iterations {
		iterations = append(iterations, it)
	}
	var epochs []*epoch
	if j.ahead != nil {
		epochs = append(epochs, j.ahead)
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
	last := j.opening
	j.mu.Unlock()
	opening = unanswered(last)
	for _, e := range j.epochs() {
		opening = opening || unanswered(e.answered)
		if pass := e.report(false); pass != nil {
			passes = append(passes, pass)
		}
	}
	for _, e := range j.consumer.Leaving.list() {
		if pass := e.report(true); pass != nil {
			passes = append(passes, pass)
		}
	}
	return passes, opening
}

// ClientUnknown is called when the dispatcher does not know this client, and settles whether it still has the job. What waits here of a
// shared one is gone in any case.
func (j *Job) ClientUnknown(ctx context.Context, why *reason.Error) {
	var epochs []*epoch
	if j.consumer.shared() {
		epochs = j.epochs()
	}
	for _, e := range epochs {
		e.disown()
	}
	if !j.reattach(ctx) {
		return
	}
	for _, e := range epochs {
		e.abort(why)
	}
}

// reattach asks for the same job again after the dispatcher has forgotten this client. A dispatcher that still has
// the job finds it by the request's id; one that lost it gives another job, and this one is over. It tells whether the client is known again.
func (j *Job) reattach(ctx context.Context) bool {
	answer, err := j.session.link.API().CreateJob(ctx, j.consumer.Request)
	if err != nil && (isOutage(err) || ctx.Err() != nil) {
		return false
	}
	if err == nil && answer.GetJobId() == j.consumer.JobID && answer.GetPlan().GetHash() == j.consumer.Plan.GetHash() {
		j.keepTo(answer.GetClientTimeoutS())
		return true
	}
	j.Lose("")
	return false
}

// keepTo takes over a timeout that the dispatcher told: one that was restarted may have another.
func (j *Job) keepTo(seconds float64) {
	if seconds <= 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timeoutS = seconds
}

// timeout is how many seconds without a heartbeat the dispatcher forgets this consumer after.
func (j *Job) timeout() float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.timeoutS
}

// Lose ends everything of a job that the dispatcher does not know any more.
func (j *Job) Lose(why string) {
	if why != "" {
		why = " (" + why + ")"
	}
	err := reason.New(reason.JobUnknown, "the dispatcher at %s does not know job %s any more%s: it was restarted without its work directory or with an older copy, or "+
		"has heard nothing of this trainer for more than %.0f s; make a new iterator, which starts a new job", j.session.link.Target(), j.consumer.JobID, why, j.timeout())
	j.mu.Lock()
	known := j.lost != nil
	if !known {
		j.lost = err
	}
	j.mu.Unlock()
	if known {
		return
	}
	for _, e := range j.epochs() {
		e.abort(err)
	}
	// Whoever sees the error may begin with another dataset at once, whose job is probably lost as well.
	j.session.verify(j)
}

// isLost is true when the dispatcher does not know the job any more.
func (j *Job) isLost() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lost != nil
}

// part lets go of a lost job that another one took the place of. Its iterations stay: each has its own error to tell, and
// what had arrived for it to hand out.
func (j *Job) part() {
	j.session.mu.Lock()
	delete(j.session.jobs, j)
	j.session.mu.Unlock()
	j.mu.Lock()
	ahead := j.ahead
	j.ahead = nil
	j.mu.Unlock()
	if ahead != nil {
		ahead.close()
	}
	// A dispatcher that goes on with an older store has the job all the same, and its streams would be run for nobody.
	j.sayGoodbye()
}

// Close ends the job's iterations and the pass that was opened ahead, and takes leave of the dispatcher. Idempotent.
func (j *Job) Close() error {
	if err := j.session.link.checkFork(); err != nil {
		return err
	}
	j.shut()
	return nil
}

func (j *Job) shut() {
	j.session.mu.Lock()
	delete(j.session.jobs, j)
	j.session.mu.Unlock()
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return
	}
	j.closed = true
	ahead := j.ahead
	j.ahead = nil
	iterations := make([]*Iteration, 0, len(j.iterations))
	for it := range j.iterations {
		iterations = append(iterations, it)
	}
	j.mu.Unlock()
	for _, it := range iterations {
		it.shut()
	}
	if ahead != nil {
		ahead.close()
	}
	j.sayGoodbye()
}

// sayGoodbye lets the dispatcher forget this consumer at once, after everything else it is told of it.
func (j *Job) sayGoodbye() {
	api, request := j.session.link.API(), &pecanv1.ClientGoodbyeRequest{ClientId: j.consumer.ClientID}
	j.session.link.Deliver(func(ctx context.Context) error {
		_, err := api.ClientGoodbye(ctx, request)
		return err
	})
}
