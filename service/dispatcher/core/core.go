package core

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// Core is the state machine. It is not safe for concurrent use.
type Core struct {
	cfg   Config
	state *durable.State

	// now is the time of the decision minus paused, the time in which this process did not run.
	now, paused, lastInput time.Duration
	// preemptAt is the next time at which preempt looks.
	preemptAt time.Duration
	// startedS is the time of day at which the clock had the value 0, in seconds since 1970.
	startedS int64

	clients map[string]*clientState
	workers map[string]*workerState
	// heartbeatPeriod is the period of all workers. Until slowerUntil, some may not have sent a heartbeat since it was
	// slowerPeriod.
	heartbeatPeriod, slowerPeriod, slowerUntil time.Duration
	// lastOrder counts the workers that have registered or were restored. Each worker gets a number from it, in the order
	// of their coming.
	lastOrder uint64
	// epochs has the volatile state of open epochs.
	epochs map[passKey]*epochState
	// profiles has the reported metrics by job.
	profiles map[string]*jobmetrics.Reports
	// sources has how the workers of a job with candidates read its source.
	sources map[string]*measure.Source
	// reads and writes have how workers use the store of caches together.
	reads, writes measure.Store
	watches       map[WatchID]*watchState
	// stalled has the watches of passes in which nothing moves, and those that have had no update.
	stalled map[WatchID]bool
	// sessions has the worker of each live session.
	sessions map[SessionID]string
	// stopping has stopped runs that may still write files.
	stopping map[fileKey][]stoppingRun
	// caches has the state of caches that has no records.
	caches cachesState
	// following has the parts of caches that workers write, for other epochs that wait for them.
	following following
	// idleJobs and idleDatasets have the time since which a job has no client, or a dataset no job.
	idleJobs, idleDatasets map[string]time.Duration
	// placements decides which workers serve each job.
	placements *placement.Placements
	// fleet decides how many workers a provider is asked for.
	fleet *fleet.Fleet
	// orders takes other orders of steps to production.
	orders   *rollout.Rollouts
	versions uint64
	// leaseFloor is the newest lease that a worker holds and the store has lost.
	leaseFloor uint64

	schedule *schedule.Scheduler
	// dirty means that leases, consumers or updates may depend on what happened. touched says on what.
	dirty   bool
	touched touches
	out     *Result
	// list is the last record of the decision, if that is a list. starts and stops have the last commands of each session,
	// if these are lists.
	list   list
	starts map[SessionID]*pecanv1.StartStreams
	stops  map[SessionID]*openStops
}

// New returns a core over a state. The core owns the state from then on.
func New(cfg Config, state *durable.State) *Core {
	c := &Core{
		cfg: cfg, state: state, heartbeatPeriod: cfg.Heartbeat,
		clients: map[string]*clientState{}, workers: map[string]*workerState{}, epochs: map[passKey]*epochState{}, profiles: map[string]*jobmetrics.Reports{}, sources: map[string]*measure.Source{},
		watches: map[WatchID]*watchState{}, stalled: map[WatchID]bool{}, sessions: map[SessionID]string{},
		stopping: map[fileKey][]stoppingRun{}, caches: newCachesState(), following: newFollowing(), idleJobs: map[string]time.Duration{}, idleDatasets: map[string]time.Duration{},
		fleet: fleet.New(cfg.Fleet),
	}
	c.orders = rollout.NewRollouts(rolloutHost{c}, state, c.takeAtOnce)
	c.schedule = schedule.New(scheduleHost{c}, state, len(cfg.WorkerAddresses), cfg.Tenants)
	c.placements = placement.New(placementHost{c}, state, c.schedule, c.fleet, cfg.DeadAfter)
	c.touched = newTouches()
	for _, job := range state.Jobs() {
		for _, epoch := range job.Epochs {
			c.touchEpoch(epoch)
		}
	}
	return c
}

// State returns the durable state for reading.
func (c *Core) State() *durable.State { return c.state }

// Decide takes one input. The package comment says what the caller must do with the Result.
func (c *Core) Decide(input any, now time.Duration) Result {
	c.advance(now)
	out := &Result{}
	c.out, c.list, c.starts, c.stops = out, list{}, map[SessionID]*pecanv1.StartStreams{}, map[SessionID]*openStops{}
	out.Reply, out.Err = c.handle(input)
	if out.Err != nil {
		out.Reply = nil
	}
	if c.dirty {
		c.dirty = false
		c.adjust()
	}
	c.out = nil
	return *out
}

// advance moves the core's clock. A gap far longer than a tick means that this process was stopped. That time
// counts for no timeout; otherwise every worker and client would be dead after a pause of the dispatcher. A shorter
// gap and the longest period of heartbeats together leave every worker alive.
func (c *Core) advance(now time.Duration) {
	if gap := now - c.lastInput; c.lastInput > 0 && gap > min(c.cfg.SuspectAfter, c.cfg.DeadAfter/2) {
		c.paused += gap
	}
	c.lastInput = max(c.lastInput, now)
	c.now = max(c.now, now-c.paused)
}

// handle calls the function for an input. It returns the reply.
func (c *Core) handle(input any) (any, error) {
	switch in := input.(type) {
	case Start:
		c.start(in)
		return nil, nil
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
	case *pecanv1.FinishStreamsRequest:
		return reply(c.finishStreams(in))
	case *pecanv1.ReleaseStreamsRequest:
		return reply(c.releaseStreams(in))
	case *pecanv1.MarkElementsRequest:
		c.markElements(in)
		return &pecanv1.MarkElementsResponse{}, nil
	case *pecanv1.ReportCrashRequest:
		c.reportCrash(in)
		return &pecanv1.ReportCrashResponse{}, nil
	case *pecanv1.ReportWorkerRequest:
		return &pecanv1.ReportWorkerResponse{}, c.reportWorker(in)
	case *pecanv1.CloseEpochRequest:
		return &pecanv1.CloseEpochResponse{}, c.closeEpoch(in)
	case *pecanv1.ClientHeartbeatRequest:
		return reply(c.clientHeartbeat(in))
	case *pecanv1.ChangeCacheRequest:
		return &pecanv1.ChangeCacheResponse{}, c.changeCache(in)
	case *pecanv1.ClientGoodbyeRequest:
		c.clientGoodbye(in)
		return &pecanv1.ClientGoodbyeResponse{}, nil
	case Watch:
		return nil, c.watch(in)
	case Unwatch:
		c.unwatch(in.ID)
		return nil, nil
	case Hello:
		return nil, c.hello(in)
	case FromWorker:
		return nil, c.fromWorker(in)
	case SessionEnded:
		c.sessionEnded(in.Session)
		return nil, nil
	case rollout.Planned:
		c.orders.Planned(in)
		return nil, nil
	case OrderRefused:
		c.orders.Refused(in.JobID, in.Why)
		return nil, nil
	case placement.Placed:
		c.placements.Placed(in)
		return nil, nil
	case CachingDecided:
		c.cachingDecided(in)
		return nil, nil
	case *pecanv1.MergeLearnedRequest:
		return reply(c.mergeLearned(in))
	case fleet.Answer:
		c.fleet.Answered(c.now, in)
		c.stepFleet()
		return nil, nil
	case Tick:
		c.tick()
		return nil, nil
	}
	return nil, reason.New(reason.Internal, "decide: unknown input %T", input)
}

// reply turns a nil pointer with an error into a nil reply.
func reply[T any](message *T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return message, nil
}

func (c *Core) start(in Start) {
	c.startedS = in.UnixS - int64(c.lastInput/time.Second)
	id := c.state.ClusterID()
	if id == "" {
		id = in.ClusterID
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_Started{Started: &pecanv1.DispatcherStarted{ClusterId: id}}})
	c.startCaches()
	for _, clientID := range c.state.ClientIDs() {
		c.addClient(clientID).timeoutUnconfirmed = true
	}
	// Workers that held leases may come back. Until then they count as away.
	for _, id := range c.state.Holders() {
		held := c.state.Leases(id)[0]
		address := held.Epoch.Find(held.Stream).Worker
		c.workers[id] = &workerState{order: c.nextOrder(), address: address, away: true, unheardSinceRestart: true, awayUntil: c.now + c.cfg.DeadAfter, maxStreams: 1}
		c.refreshWorker(id)
	}
	for _, id := range c.state.NamedWorkers() {
		if c.workers[id] == nil {
			c.forgetWorker(id)
		}
	}
}

// tick does what follows from time alone.
func (c *Core) tick() {
	// The numbers of the scheduler are those of the last decision, so preempt comes before all that changes leases.
	c.preempt()
	c.expireWorkers()
	c.spaceHeartbeats()
	c.expireClients()
	c.expireJobs()
	c.expireDatasets()
	c.orders.Tick()
	for id, worker := range c.workers {
		if c.usable(worker) != worker.reportedUsable {
			// It has been silent for too long, or was heard again.
			c.refreshWorker(id)
		}
	}
	c.placements.LeaveOtherHosts()
	c.stepCaches()
	c.stepCaching()
	c.stepFollowing()
	c.placements.Step()
	c.stepFleet()
	c.sendAllLateStops()
	c.schedule.Retry()
	for _, job := range c.state.Jobs() {
		for _, epoch := range job.Epochs {
			if !durable.Private(job) && len(epoch.Passes) > 1 {
				// A starving client may get a stream that another one has kept for long enough.
				c.touch(epoch)
			}
		}
	}
	c.dirty = true
}

// adjust adapts leases, consumers and updates to what has changed.
func (c *Core) adjust() {
	c.carryRows()
	c.endUnread()
	c.dropUnneededLeases()
	c.addStreamsOfOffMode()
	c.schedule.Run(c.now < c.cfg.DeadAfter)
	c.assignConsumers()
	c.pushRemainders()
	c.pushUpdates()
	c.dropSettled()
	c.touched = newTouches()
}

// emit applies a record and adds it to the result. A record that does not fit is a bug in a decision. The core
// panics then, because the journal would differ from the state.
func (c *Core) emit(record *pecanv1.Record) {
	c.touchBefore(record)
	if err := c.state.Apply(record); err != nil {
		panic(err)
	}
	c.out.Records = append(c.out.Records, record)
	c.touchRecord(record)
	if fingerprint := c.learnedOf(record); fingerprint != "" {
		c.effect(SaveLearned{fingerprint})
	}
	c.dirty = true
}

func (c *Core) effect(e Effect) { c.out.Effects = append(c.out.Effects, e) }

// event writes an event to the log. Its text names the event: a noun and what happened to it.
func (c *Core) event(text string, args ...any) { c.effect(Event{Text: text, Args: args}) }

func (c *Core) warn(text string, args ...any) { c.effect(Event{Text: text, Args: args, Warn: true}) }
