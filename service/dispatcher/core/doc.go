// Package core is the dispatcher without its environment: a state machine without clock, network, disk or randomness.
// Nothing depends on the order of a map. Every input brings what it needs from outside.
//
// Decide takes an input and the time. It returns a Result: records, effects and a reply. The records are already
// applied to the core's own state, so the next decision builds on them. The caller makes them durable, and only then
// releases the reply and the effects, in the order of decisions. If the process dies before that, the records never
// existed: nobody has seen their effects. Applying all durable records to an empty state yields the state of the core
// that wrote them.
//
// There are two kinds of state. Durable state (package durable) is the sum of the records. Volatile state (volatile.go)
// is what workers and clients report again after a restart: addresses, heartbeats, loads, progress.
//
// The separable subjects are packages of their own. durable has the records. schedule decides which worker gets which
// stream. crashguard decides whether a stream kills workers. jobmetrics sums metrics. measure says how fast trainers and
// workers are. fleet decides how many workers a provider is asked for. placement decides which workers serve a job. rollout
// takes orders of steps to production.
//
// The rest is one state machine: each input may end epochs, leases and watches of all others. The package has more files
// and lines than others because all inputs share the volatile state. A row names an input, or a part of what it causes, and
// its file. Several inputs may write the same record:
//
//	input                        file                 records                            effects
//	Start, Tick                  core.go              DispatcherStarted                  effects of timeouts
//	AddDataset                   datasets.go          DatasetAdded, DatasetRemoved       RemoveGraph
//	CreateJob                    jobs.go              JobCreated, JobJoined, JobLeft,    PlanNeeded is the reply
//	                                                  JobRemoved, JobFailed
//	ClientHeartbeat, -Goodbye    clients.go           ClientJoined, ClientLeft           EndWatch
//	OpenEpoch, AdoptEpoch        epoch_open.go        EpochOpened, EpochJoined,
//	                                                  EpochAdopted
//	CloseEpoch                   epoch_close.go       EpochLeft, EpochClosed,            Command(StopStreams), EndWatch;
//	                                                  EpochFailed                        Command(Stop) for runs that write files
//	FinishStreams,               stream_reports.go    StreamsDelivered, StreamDelivered, Command(StopStreams)
//	ReleaseStreams                                    ConsumerReleased
//	Hello                        registration.go      WorkerNamed (stale_store.go:       Command(Welcome), EndSession
//	                                                  JobFailed)
//	Tick                         heartbeat_period.go                                     Command(SetHeartbeat)
//	FromWorker, SessionEnded     workers.go,          StreamsProduced, LeaseLost,        Command
//	                             stream_lists.go      WorkerForgotten
//	MarkElements, ReportCrash    crashes.go           LeaseLost, JobFailed
//	ReportWorker                 lease_lost.go        LeaseLost                          Command(StopStreams)
//	FromWorker: caches           caches.go            CacheSegmentAdded, -Dropped,       Command(CacheSegmentAck,
//	                                                  CacheCommitted                     CacheOrphans)
//	Tick                         cache_eviction.go    CacheEvicted, CachesUsed           Command(CacheOrphans)
//	                             cache_benefit.go     CacheMeasured
//	ChangeCache                  cache_operator.go    CachePinned, CacheEvicted          Command(CacheOrphans)
//	Planned,                     package rollout      OrderDecided, OrderJudged,         PlanRequest, Command(TryOrder)
//	FromWorker: OrderTried                            ProfileLearned
//	MergeLearned                 learned.go           LearnedMerged                      SaveLearned
//	OrderRefused                 package rollout      OrderJudged
//	CachingDecided               cache_decision.go    CacheDecided                       CachingRequest
//	CloseEpoch                   cache_epochs.go
//	placement.Placed             package placement    PlacementDecided, PlacementLearned    placement.Request
//	                             placement_host.go    LeaseLost                          Command(StopStreams)
//	fleet.Answer                 fleet.go                                                fleet.Request, Command(Leave)
//	heartbeat of a leaving       departure.go                                            WorkerLeft
//	worker, goodbye
//	Watch, Unwatch               watches.go                                              Update, EndWatch
//	after every decision         lease_grant.go       LeasesGranted, StreamAdded         Command(StartStreams)
//	                             consumers.go         ConsumersAssigned
//
// An epoch may have 65,536 streams, so nothing here visits all of them. touched.go collects what a decision changed;
// adjust looks at that only, and at time-outs. lists.go makes one record of changes that follow each other, and
// commands.go one command. cache_shared.go finds the streams that other epochs with the same cache compute, and
// cache_follow.go lets streams wait for their parts.
// cache_order.go finds the order of steps in which a stream reads and writes. reach.go says which workers a client
// cannot reach. schedule_host.go connects package schedule, placement_host.go package placement, and rollout_host.go package
// rollout.
//
// inputs.go has the inputs, effects and results, and config.go has the settings. job_options.go compares the options of a
// job's trainers, and tenants.go checks tenants. repeated_request.go finds the answer to an earlier copy of a request.
// carry.go keeps the carry: the rows that the next epoch joins.
//
// The life of a lease, in order: lease_grant.go, lease_held.go, lease_lost.go. Then adjust (core.go) grants a new lease. When
// a stream is delivered and no closing stream needs its rows, its lease ends in durable (endLeases). The leases of a closed
// epoch end with EpochClosed.
// Only nextLease makes the number of a lease. A LeaseLost record is durable before another worker gets the stream. Only
// loseLease, loseLeaseWithWorker and markElements (crashes.go) write LeaseLost records. A worker's lease time is LeaseTTL
// (config.go). truncation.go decides when the loss of a lease ends the stream. stopping_runs.go delays a grant until the
// files of the last run are closed. waiting.go and status.go report why a stream or job waits. cache_candidates.go
// reports which steps a job may cache.
//
// consumers.go says where the next consumer of a stream starts, and volatile.go which bounds a stream has.
//
// Prefetched epochs may never be read. Until AdoptEpoch such an epoch has at most one stream on each worker, in a free
// slot, and the worker produces one element of it. The prefetch flag is durable. The number of each assignment of a
// stream to a consumer is durable too. The core uses the number to detect late and repeated calls of an older assignment.
//
// Do not call time.Now, start goroutines or do I/O here: service/dispatcher does. Do not change durable state except through
// emit.
package core
