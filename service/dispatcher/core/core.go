package core

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/multierr"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Config is what the core's decisions depend on beside its inputs. All durations are of the monotonic clock.
type Config struct {
	// Heartbeat is the period that workers are told to beat in.
	Heartbeat time.Duration
	// SuspectAfter without a heartbeat a worker gets no new streams; DeadAfter its streams move.
	SuspectAfter, DeadAfter time.Duration
	// ReturnGrace is how long a worker whose session broke keeps its streams, so that one that connects again at once loses nothing.
	ReturnGrace time.Duration
	// ClientTimeout without a heartbeat a client is forgotten.
	ClientTimeout time.Duration
	// JobTimeout after its last client left a named job is forgotten; a private job goes with its client.
	JobTimeout time.Duration
	// DatasetTimeout after its last job went a dataset is forgotten. 0 keeps datasets for ever.
	DatasetTimeout time.Duration
	// LeaseTTL without contact a worker stops serving by itself. It is long: readers refuse older leases anyway, and workers
	// shall go on while the dispatcher is away.
	LeaseTTL time.Duration
	// ConsumerSlice is how long a consumer keeps a stream before a starving one may get it.
	ConsumerSlice time.Duration
	// MaxCrashes of workers in a row without progress, all while they ran one stream, fail the job; so do MaxDeaths, of whatever cause.
	MaxCrashes, MaxDeaths int
	// MaxFailures of a stream that another worker might not have had fail the epoch.
	MaxFailures int
	// MaxJobs, MaxClients and MaxDatasets bound what is held at once: each costs memory and room in the journal.
	MaxJobs, MaxClients, MaxDatasets int
	// MaxEpochs bounds how many epochs of one job are open at once, so that one trainer cannot take all there is.
	MaxEpochs int
	// WorkerAddresses, when there are any, are the only workers accepted, and give each its place for static sharding.
	WorkerAddresses []string
}

// DefaultConfig is what the flags of pecan-dispatcher default to.
func DefaultConfig() Config {
	return Config{
		Heartbeat: time.Second, SuspectAfter: 3 * time.Second, DeadAfter: 10 * time.Second, ReturnGrace: time.Second,
		ClientTimeout: time.Minute, JobTimeout: 5 * time.Minute, LeaseTTL: 10 * time.Minute, ConsumerSlice: 2 * time.Second,
		MaxCrashes: 3, MaxDeaths: 12, MaxFailures: 3, MaxJobs: 10_000, MaxClients: 10_000, MaxDatasets: 100_000, MaxEpochs: 1000,
	}
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var err error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"heartbeat period", c.Heartbeat}, {"worker suspect time", c.SuspectAfter}, {"worker dead time", c.DeadAfter},
		{"lease time", c.LeaseTTL}, {"client timeout", c.ClientTimeout},
	} {
		if d.value <= 0 {
			err = multierr.Append(err, fmt.Errorf("%s %v: must be positive", d.name, d.value))
		}
	}
	if c.ReturnGrace < 0 || c.JobTimeout < 0 || c.DatasetTimeout < 0 || c.ConsumerSlice < 0 {
		err = multierr.Append(err, errors.New("worker grace, job timeout, dataset timeout and consumer slice must not be negative"))
	}
	if c.SuspectAfter < c.Heartbeat || c.DeadAfter < c.SuspectAfter {
		err = multierr.Append(err, fmt.Errorf("heartbeat period %v, worker suspect time %v and worker dead time %v: each must be at least the one before", c.Heartbeat, c.SuspectAfter, c.DeadAfter))
	}
	if c.MaxJobs < 1 || c.MaxClients < 1 || c.MaxDatasets < 1 || c.MaxEpochs < 1 {
		err = multierr.Append(err, fmt.Errorf("--max-jobs %d, --max-clients %d, --max-datasets %d, --max-epochs %d: each must be at least 1", c.MaxJobs, c.MaxClients, c.MaxDatasets, c.MaxEpochs))
	}
	if c.MaxCrashes < 1 || c.MaxDeaths < c.MaxCrashes || c.MaxFailures < 1 {
		err = multierr.Append(err, fmt.Errorf("at most %d crashes, %d deaths and %d failures of a stream: each must be at least 1, and deaths no fewer than crashes", c.MaxCrashes, c.MaxDeaths, c.MaxFailures))
	}
	return err
}

// SessionID names one connection of a worker, WatchID one watch of a client; the caller gives both out and never again.
type (
	SessionID uint64
	WatchID   uint64
)

// Effect is something the caller does once the records of the same Result are durable.
type Effect any

type (
	// Command goes to a worker.
	Command struct {
		Session SessionID
		Message *pecanv1.WorkerCommand
	}
	// EndSession breaks a worker's connection; Err is told to it.
	EndSession struct {
		Session SessionID
		Err     *reason.Error
	}
	// Update is the newest snapshot for a watch; a caller that is behind drops older ones.
	Update struct {
		Watch   WatchID
		Message *pecanv1.EpochUpdate
	}
	// EndWatch ends a watch; a nil Err means that it is over as it should be.
	EndWatch struct {
		Watch WatchID
		Err   *reason.Error
	}
	// PlanOrder asks for an order of the steps of a graph, from figures of what they cost. It is answered by OrderPlanned, whatever
	// comes of it.
	PlanOrder struct {
		Asked       uint64
		Fingerprint string
		Plan        *pecanv1.Plan
		Options     *pecanv1.JobOptions
		Nodes       []*pecanv1.NodeMetrics
	}
	// ForgetGraph deletes a graph that no dataset has any more.
	ForgetGraph struct{ Fingerprint string }
	// Event is a change of state in words for the log.
	Event struct {
		Text string
		Args []any
		Warn bool
	}
)

// Result of a decision.
type Result struct {
	// Records are applied already and have to be made durable.
	Records []*pecanv1.Record
	Effects []Effect
	// Reply is the answer to a request, of the type that the input's doc says. Nil when Err is set.
	Reply any
	Err   error
}

// Inputs of Decide, beside the requests of the Dispatcher service themselves (OpenEpoch, AdoptEpoch, FinishStream,
// ReleaseStream, ReportWorker, MarkElements, ReportCrash, CloseEpoch, ClientHeartbeat, ClientGoodbye), whose replies are their responses.
type (
	// Start is the first input: this process has the store.
	Start struct {
		// ClusterID names the cluster when the store is new.
		ClusterID string
	}
	// AddDataset registers a dataset whose graph is stored already. Reply: *pecanv1.RegisterDatasetResponse.
	AddDataset struct {
		// WantedID may be empty; then DerivedIDs are tried in order.
		WantedID    string
		DerivedIDs  []string
		Fingerprint string
		Spec        *pecanv1.DatasetSpec
		GraphBytes  int64
	}
	// CreateJob finds or creates a job. Reply: *pecanv1.CreateJobResponse, or PlanNeeded.
	CreateJob struct {
		Request *pecanv1.CreateJobRequest
		// JobID and Seed are drawn by the caller, for the case that a job is created.
		JobID string
		Seed  uint64
		// Plan is nil at first.
		Plan *pecanv1.Plan
	}
	// OpenEpochAt is an OpenEpochRequest whose position's order was found by the caller, see OrderToFind. Reply: as to that.
	OpenEpochAt struct {
		Request *pecanv1.OpenEpochRequest
		// Order has the names of all steps; none: it was not to be found.
		Order []string
	}
	// OrderPlanned answers PlanOrder, whose number it has.
	OrderPlanned struct {
		Asked uint64
		// Order has the names of all steps, the one next to the source first; none: the registered one stays.
		Order []string
		// Steps are in the registered order.
		Steps []*pecanv1.ExplainedStep
		// PredictedBefore and PredictedAfter are seconds of CPU for an element of the source.
		PredictedBefore, PredictedAfter float64
		// Why says what the order gains, or why the registered one stays.
		Why string
		// Again, when set, says why nothing could be planned now.
		Again string
	}
	// PlanNeeded is the reply to a CreateJob without a plan when it would create a job: nothing was changed, ask again with one.
	PlanNeeded struct{ Dataset *pecanv1.StoredDataset }
	// Watch starts pushing Updates for a pass.
	Watch struct {
		ID      WatchID
		Request *pecanv1.WatchEpochRequest
	}
	// Unwatch ends it.
	Unwatch struct{ ID WatchID }
	// Hello is a worker's first message on a new session. Errors end the session.
	Hello struct {
		Session SessionID
		Message *pecanv1.WorkerHello
	}
	// FromWorker is any other message of a worker.
	FromWorker struct {
		Session SessionID
		Message *pecanv1.WorkerMessage
	}
	// SessionEnded tells that a worker's connection is gone.
	SessionEnded struct{ Session SessionID }
	// Tick lets time pass. It has to come a few times per second.
	Tick struct{}
)

// Core is the state machine. It is not safe for concurrent use.
type Core struct {
	cfg   Config
	state *State

	// now is the time of the decision, less the time in which this process did not run.
	now, paused, lastInput time.Duration

	clients map[string]*clientState
	workers map[string]*workerState
	streams map[streamKey]*streamState
	// profiles have what nodes did, by job.
	profiles map[string]*jobFigures
	watches  map[WatchID]*watchState
	// sessions has the worker of each live session.
	sessions map[SessionID]string
	// closing has the runs over files that were taken from workers and may not be over.
	closing map[fileKey][]closingRun
	// usedCaches are those that a worker was told to read.
	usedCaches map[string]bool
	// idleJobs and idleDatasets say since when nobody holds them.
	idleJobs, idleDatasets map[string]time.Duration
	// orderings has how far the looking for orders of steps has come that are not decided; ordersAsked and trials number its questions.
	orderings           map[orderKey]*ordering
	ordersAsked, trials uint64
	// pilots has how orders do in production, as far as epochs were opened that have them.
	pilots map[orderKey]*pilot
	// orderedPlans has the plans of open epochs that run in another order.
	orderedPlans map[passKey]*pecanv1.Plan
	versions     uint64
	// leaseFloor is the newest lease that a worker proved to have been given, when the store has lost it.
	leaseFloor uint64

	// dirty: something happened that leases, consumers or snapshots may depend on.
	dirty bool
	out   *Result
}

// New makes a core over a state, which belongs to it from then on.
func New(cfg Config, state *State) *Core {
	return &Core{
		cfg: cfg, state: state,
		clients: map[string]*clientState{}, workers: map[string]*workerState{}, streams: map[streamKey]*streamState{}, profiles: map[string]*jobFigures{},
		watches: map[WatchID]*watchState{}, sessions: map[SessionID]string{},
		closing: map[fileKey][]closingRun{}, usedCaches: map[string]bool{}, idleJobs: map[string]time.Duration{}, idleDatasets: map[string]time.Duration{},
		orderings: map[orderKey]*ordering{}, pilots: map[orderKey]*pilot{}, orderedPlans: map[passKey]*pecanv1.Plan{},
	}
}

// State gives the durable state for reading.
func (c *Core) State() *State { return c.state }

// Decide takes one input. See the package's doc for what the caller owes.
func (c *Core) Decide(input any, now time.Duration) Result {
	c.advance(now)
	out := &Result{}
	c.out = out
	out.Reply, out.Err = c.handle(input)
	if out.Err != nil {
		out.Reply = nil
	}
	if c.dirty {
		c.dirty = false
		c.settle()
	}
	c.out = nil
	return *out
}

// advance moves the core's clock. A gap far longer than the ticks means that this process was stopped: that time counts for
// nobody's timeout, or every worker and client would be dead after a pause of the dispatcher.
func (c *Core) advance(now time.Duration) {
	if gap := now - c.lastInput; c.lastInput > 0 && gap > c.cfg.SuspectAfter {
		c.paused += gap
	}
	c.lastInput = max(c.lastInput, now)
	c.now = max(c.now, now-c.paused)
}

func (c *Core) handle(input any) (any, error) {
	switch in := input.(type) {
	case Start:
		return nil, c.start(in)
	case AddDataset:
		return reply(c.addDataset(in))
	case CreateJob:
		return c.createJob(in)
	case *pecanv1.OpenEpochRequest:
		return reply(c.openEpoch(OpenEpochAt{Request: in}))
	case OpenEpochAt:
		return reply(c.openEpoch(in))
	case *pecanv1.AdoptEpochRequest:
		return &pecanv1.AdoptEpochResponse{}, c.adoptEpoch(in)
	case *pecanv1.FinishStreamRequest:
		return &pecanv1.FinishStreamResponse{}, c.finishStream(in)
	case *pecanv1.ReleaseStreamRequest:
		return &pecanv1.ReleaseStreamResponse{}, c.releaseStream(in)
	case *pecanv1.MarkElementsRequest:
		c.markElements(in)
		return &pecanv1.MarkElementsResponse{}, nil
	case *pecanv1.ReportCrashRequest:
		c.workerCrashes(in)
		return &pecanv1.ReportCrashResponse{}, nil
	case *pecanv1.ReportWorkerRequest:
		return &pecanv1.ReportWorkerResponse{}, c.reportWorker(in)
	case *pecanv1.CloseEpochRequest:
		return &pecanv1.CloseEpochResponse{}, c.closeEpoch(in)
	case *pecanv1.ClientHeartbeatRequest:
		return &pecanv1.ClientHeartbeatResponse{ClientTimeoutS: c.cfg.ClientTimeout.Seconds()}, c.clientHeartbeat(in)
	case *pecanv1.ClientGoodbyeRequest:
		return &pecanv1.ClientGoodbyeResponse{}, c.clientGoodbye(in)
	case Watch:
		return nil, c.watch(in)
	case Unwatch:
		delete(c.watches, in.ID)
		return nil, nil
	case Hello:
		return nil, c.hello(in)
	case FromWorker:
		return nil, c.fromWorker(in)
	case SessionEnded:
		c.sessionEnded(in.Session)
		return nil, nil
	case OrderPlanned:
		c.orderPlanned(in)
		return nil, nil
	case Tick:
		c.tick()
		return nil, nil
	}
	return nil, reason.New(reason.Internal, "decide: unknown input %T", input)
}

// reply keeps a nil pointer from becoming a reply that is not nil.
func reply[T any](message *T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return message, nil
}

func (c *Core) start(in Start) error {
	id := c.state.clusterID
	if id == "" {
		id = in.ClusterID
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_Started{Started: &pecanv1.DispatcherStarted{ClusterId: id}}})
	for clientID := range c.state.clients {
		c.clients[clientID] = newClientState(c.now)
		c.clients[clientID].untold = true
	}
	// Workers that held leases before may come back; until then they count as away.
	for _, job := range c.state.ordered {
		for _, epoch := range job.Epochs {
			for _, stream := range epoch.Streams {
				if stream.Worker != nil && c.workers[stream.Worker.WorkerId] == nil {
					c.workers[stream.Worker.WorkerId] = &workerState{address: stream.Worker, away: true, restored: true, awayUntil: c.now + c.cfg.DeadAfter, maxStreams: 1}
				}
			}
		}
	}
	return nil
}

// tick does what follows from time alone.
func (c *Core) tick() {
	c.expireWorkers()
	c.expireClients()
	c.expireJobs()
	c.expireDatasets()
	c.goOnOrdering()
	c.goOnPilots()
	c.dirty = true
}

// settle brings leases, consumers and snapshots in line with what has just changed.
func (c *Core) settle() {
	c.dropUnneededLeases()
	c.addOffStreams()
	c.assignLeases()
	c.assignConsumers()
	c.pushRemainders()
	c.pushUpdates()
}

// emit applies a record and puts it into the result. A record that does not fit is a bug in a decision, and going
// on would make the journal differ from the state.
func (c *Core) emit(record *pecanv1.Record) {
	if err := c.state.Apply(record); err != nil {
		panic(err)
	}
	c.out.Records = append(c.out.Records, record)
	c.dirty = true
}

func (c *Core) effect(e Effect) { c.out.Effects = append(c.out.Effects, e) }

func (c *Core) event(text string, args ...any) { c.effect(Event{Text: text, Args: args}) }

func (c *Core) warn(text string, args ...any) { c.effect(Event{Text: text, Args: args, Warn: true}) }
