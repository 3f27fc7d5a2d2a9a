package client

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

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
	request *pecanv1.CreateJobRequest
	id      string
	// clientID is the dispatcher's name of this consumer: each job object is one of its own, so that two of one name
	// in one process share it as two processes would, and one that is closed is gone at once.
	clientID string
	plan     *pecanv1.Plan
	options  *pecanv1.JobOptions
	durable  bool
	created  bool
	workers  int

	mu sync.Mutex
	// timeoutS is how many seconds without a heartbeat the dispatcher forgets this consumer after, as it told last.
	timeoutS float64
	// known is how long the dispatcher knows this consumer for certain.
	known atomic.Pointer[term]
	// lost is set when the dispatcher does not know the job any more.
	lost   error
	closed bool
	// nextPass numbers the passes of this job's iterators over it that the dispatcher has opened.
	nextPass uint64
	// leaving are the epochs that are closed here, of which the dispatcher is still to be told.
	leaving epochSet
	// beats counts heartbeats, reports those of workers that could not be reached.
	beats, reports atomic.Uint64
	// opening is closed when the epoch that was begun last is open, or will never be.
	opening chan struct{}
	// ahead is the next pass, opened before it is asked for.
	ahead *epoch
	// from is the number of the next epoch of a job that took the place of a lost one, whose dispatcher would count from 0. It is given with
	// every epoch that begins nowhere else until one of that number is open: the dispatcher counts on from there. had is the number behind
	// the epochs that iterations began with.
	from, had  uint64
	iterations map[*Iteration]struct{}
	// cacheSaid: what keeps pecan.cache() from its work was said.
	cacheSaid bool
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
	err := s.ask(ctx, "create the job at", func(ctx context.Context) error {
		var err error
		asked = now()
		answer, err = s.api.CreateJob(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	job := &Job{
		session: s, request: request, id: answer.GetJobId(), clientID: request.GetClientId(), plan: answer.GetPlan(), options: answer.GetOptions(),
		durable: answer.GetDurable(), created: answer.GetCreated(), workers: int(answer.GetWorkers()),
		timeoutS:   answer.GetClientTimeoutS(),
		iterations: map[*Iteration]struct{}{}, lastCount: -1,
	}
	job.heardAt(asked)
	if job.plan == nil {
		job.plan = &pecanv1.Plan{Repeat: 1, Cardinality: -2, AssertedCardinality: -2}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, reason.New(reason.Closed, "create the job: the session was closed meanwhile")
	}
	// A dispatcher that was started anew may be of another cluster: workers answer nobody who takes them for those of the old one.
	s.cluster = answer.GetClusterId()
	s.jobs[job] = struct{}{}
	return job, nil
}

// ID is the dispatcher's name of the job.
func (j *Job) ID() string { return j.id }

// ClientID is the random id under which the dispatcher knows this consumer of the job.
func (j *Job) ClientID() string { return j.clientID }

// Plan says how the dataset is divided into streams, and why.
func (j *Job) Plan() *pecanv1.Plan { return j.plan }

// Options are the job's, with what the dispatcher filled in.
func (j *Job) Options() *pecanv1.JobOptions { return j.options }

// Durable is true when the job outlives a restart of the dispatcher.
func (j *Job) Durable() bool { return j.durable }

// Created is false when the job was there already.
func (j *Job) Created() bool { return j.created }

// Workers is how many workers were registered when the job was created or found.
func (j *Job) Workers() int { return j.workers }

// Session is the session that the job belongs to.
func (j *Job) Session() *Session { return j.session }

// shared is true when other trainers may take part.
func (j *Job) shared() bool { return j.request.GetJobName() != "" }

// maxElement is the largest element accepted.
func (j *Job) maxElement() uint64 {
	if n := j.options.GetMaxElementBytes(); n > 0 {
		return uint64(n)
	}
	return defaultMaxElementBytes
}

// Open starts a pass over the dataset. It returns at once; the work goes on in the background, and what goes wrong
// comes out of Next.
func (j *Job) Open(options IterOptions) *Iteration {
	it := newIteration(j, options)
	if err := options.Validate(); err != nil {
		it.broken = err
		return it
	}
	if err := j.session.check(); err != nil {
		it.broken = err
		return it
	}
	j.mu.Lock()
	switch {
	case j.closed:
		it.broken = reason.New(reason.Closed, "job %s is closed", j.id)
	case j.lost != nil:
		it.broken = j.lost
	case !it.over:
		j.iterations[it] = struct{}{}
		if options.Resume != nil {
			it.current = newEpoch(j, nil, false, j.goOn(options.Resume.Position))
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
		return newEpoch(j, ahead.pass, false, ahead.start)
	}
	return newEpoch(j, nil, false, j.start())
}

// passOf numbers a pass when it is about to be opened: one that the dispatcher refuses, or never hears of, does not count, or all those behind
// it would be ahead of what is open.
func (j *Job) passOf(e *epoch) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.pass == nil {
		pass := j.nextPass
		e.pass = &pass
	}
	return *e.pass
}

// hasPassed counts a pass that is open.
func (j *Job) hasPassed(e *epoch) {
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

// hasOpened notes which number an epoch has; begun: an iteration begins with it.
func (j *Job) hasOpened(number uint64, begun bool) {
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

// openAhead opens the next pass if that has not been done. It comes from a goroutine that reads, so it must not wait.
func (j *Job) openAhead() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.lost != nil || j.ahead != nil {
		return
	}
	j.ahead = newEpoch(j, nil, true, j.start())
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

// sayOfCache tells people, once for each job, that pecan.cache() does not do its work.
func (j *Job) sayOfCache(trouble string) {
	j.mu.Lock()
	said := j.cacheSaid
	j.cacheSaid = true
	j.mu.Unlock()
	if !said {
		j.session.log.Warn("pecan.cache(): "+trouble, "job", j.id)
	}
}

// startsOver tells whether a stream is taken again from where it began when its worker is lost: in modes that let elements come
// twice, where an index says nothing about which element it is.
func (j *Job) startsOver() bool { return startsOver(j.plan, j.options) }

// givesUp tells whether nothing more is taken of a stream whose worker is lost: elements may not come twice, and an index says
// nothing about which element it is.
func (j *Job) givesUp() bool {
	return j.options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE && j.plan.GetDeterminism() == pecanv1.DeterminismClass_DETERMINISM_CLASS_C
}

func startsOver(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	switch options.GetMode() {
	case pecanv1.Mode_MODE_AT_LEAST_ONCE, pecanv1.Mode_MODE_OFF:
		return plan.GetDeterminism() == pecanv1.DeterminismClass_DETERMINISM_CLASS_C
	}
	return false
}

// MayDiffer tells whether a pass may have more or fewer elements than the dataset when workers are lost.
func MayDiffer(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return startsOver(plan, options) || options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE
}

// expected is how many elements a pass of this client probably has; -1 when that is not known.
func (j *Job) expected() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastCount >= 0 {
		return j.lastCount
	}
	if j.plan.GetCardinality() >= 0 && !j.shared() && j.options.GetMode() != pecanv1.Mode_MODE_OFF {
		return j.plan.GetCardinality()
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
	for _, e := range j.leaving.list() {
		if pass := e.report(true); pass != nil {
			passes = append(passes, pass)
		}
	}
	return passes, opening
}

// forgotten is called when the dispatcher does not know this client, and settles whether it still has the job. What waits here of a
// shared one is gone in any case.
func (j *Job) forgotten(ctx context.Context, why *reason.Error) {
	var epochs []*epoch
	if j.shared() {
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
	answer, err := j.session.api.CreateJob(ctx, j.request)
	if err != nil && (isOutage(err) || ctx.Err() != nil) {
		return false
	}
	if err == nil && answer.GetJobId() == j.id && answer.GetPlan().GetHash() == j.plan.GetHash() {
		j.keepTo(answer.GetClientTimeoutS())
		return true
	}
	j.lose("")
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

// term is when a call began that showed that the dispatcher knows this consumer, and for how long it does so without another one.
type term struct {
	since moment
	limit time.Duration
}

// heardAt notes that the dispatcher answered a call that began then and keeps this consumer alive.
func (j *Job) heardAt(began moment) {
	j.known.Store(&term{began, time.Duration(j.timeout() * float64(time.Second))})
}

// holds tells whether what waits here of a shared job is still this consumer's. Where the dispatcher has heard nothing for its timeout,
// because the process or the host stood still or the network failed, it may have given all that to others. The time is counted from
// before the call.
func (j *Job) holds() bool {
	if !j.shared() {
		return true
	}
	known := j.known.Load()
	return known == nil || known.limit <= 0 || known.since.ago() < known.limit
}

// timeout is how many seconds without a heartbeat the dispatcher forgets this consumer after.
func (j *Job) timeout() float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.timeoutS
}

// lose ends everything of a job that the dispatcher does not know any more.
func (j *Job) lose(why string) {
	if why != "" {
		why = " (" + why + ")"
	}
	err := reason.New(reason.JobUnknown, "the dispatcher at %s does not know job %s any more%s: it was restarted without its work directory or with an older copy, or "+
		"has heard nothing of this trainer for more than %.0f s; make a new iterator, which starts a new job", j.session.target.shown, j.id, why, j.timeout())
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
	if err := forked(j.session.pid); err != nil {
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
	api, request := j.session.api, &pecanv1.ClientGoodbyeRequest{ClientId: j.clientID}
	j.session.calls.add(call{keep: true, do: func(ctx context.Context) error {
		_, err := api.ClientGoodbye(ctx, request)
		return err
	}})
}
