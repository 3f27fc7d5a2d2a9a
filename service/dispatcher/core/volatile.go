package core

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// clientState is the volatile state of a live client.
type clientState struct {
	lastSeen time.Duration
	// timeoutUnconfirmed is set if the client joined before a restart and has not confirmed that it knows the timeout. The
	// timeout may have been longer then.
	timeoutUnconfirmed bool
	// jobs has when the client last showed that it holds a job.
	jobs map[string]time.Duration
	// heartbeatNumber is the number of the newest heartbeat, 0 before the first one since the dispatcher started.
	heartbeatNumber uint64
	// passes has the newest report on each pass.
	passes map[passKey]*passState
	// unreached has until when the client avoids workers that it could not reach.
	unreached map[string]time.Duration
}

type passKey struct {
	job   string
	epoch uint64
}

type passState struct {
	starved bool
	// report is the client's newest report with its metrics; nil before the first.
	report *pecanv1.ClientHeartbeatRequest_Pass
	// seen is when the client last showed that it wants the pass. took is when it last took an element or waited for one.
	seen, took time.Duration
}

// reconnectTime is how long a client may be silent if it does not know the timeout. The client must notice that the
// dispatcher is back, in the worst case over a connection that died silently.
const reconnectTime = 20 * time.Second

// maxSilence returns how long the client may be silent.
func (c *clientState) maxSilence(timeout time.Duration) time.Duration {
	if c.timeoutUnconfirmed {
		return max(timeout, reconnectTime)
	}
	return timeout
}

// workerState is a registered worker: connected, or away and expected back.
type workerState struct {
	address *pecanv1.WorkerAddress
	// loopback is set if address is of no use on other hosts.
	loopback bool
	session  SessionID
	// order is the order in which workers registered. It breaks ties.
	order                     uint64
	maxStreams, cores         int32
	tensorflow, version, kind string
	// trainer is the trainer that started the worker; empty if none did.
	trainer       string
	graphProducer int32
	lastMessage   time.Duration
	away          bool
	// reportedUsable says whether the scheduler counts the worker as usable.
	reportedUsable bool
	// leaving is set if the worker will soon say goodbye. departure is nil before the goodbye is planned.
	leaving       bool
	departure     *departure
	awayUntil     time.Duration
	cpuSeconds    float64
	residentBytes int64
	// totals has the worker's work of the last seconds. host is the load of its host.
	totals measure.Worker
	host   *pecanv1.HostLoad
	// caches is set if the worker has a cache directory. cacheMetrics counts what it did there. store is the speed of the
	// directory.
	caches       bool
	cacheMetrics *pecanv1.CacheMetrics
	store        *pecanv1.StoreRates
	// crash is the cause of a crash that the worker reported; empty without a report.
	crash string
	// connection is the number of the worker's newest connection.
	connection uint64
	// number names the worker in records.
	number uint32
	// commons has what the worker knows of epochs: what their streams have in common.
	commons map[passKey]*pecanv1.StartStream
	// stops are sent with the next start, or at the next tick.
	stops []lateStop
	// unheardSinceRestart is set if the worker held leases before a restart and has not come back.
	unheardSinceRestart bool
	// trying is set if the worker is trying an order of steps.
	trying bool
	// exclusive is the stream whose suspicious elements the worker computes now. The worker computes no suspicious
	// element of another stream at the same time.
	exclusive *pecanv1.StreamKey
}

// keyOf returns the key of a stored stream.
func keyOf(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) pecanv1.StreamKey {
	return pecanv1.StreamKey{Job: job.JobId, Epoch: epoch.Epoch, Stream: stream.Stream}
}

// streamState is the volatile state of a stream in an open epoch.
//
// A stream has several bounds. Each bound is an index. The table gives the property of all elements below that index:
//
//	bound         where                            what holds for the elements below it
//	StartIndex    StoredStream (durable)           the present consumer accepts none of them
//	produced      streamState, of this lease       the worker has produced them
//	acked         streamState, of this lease       the reader has acknowledged them
//	ackedBelow    streamState, of any lease        readers have acknowledged them; errors may be among them
//	cleanBelow    streamState, of any lease        as ackedBelow, and none of them is an error
//
// Each entry of StartStreams sends StartIndex as delivered_below (Count instead, if the whole stream was delivered),
// ackedBelow as acked_below and cleanBelow as clean_below.
type streamState struct {
	// lease is the lease to which the fields up to unread belong.
	lease    uint64
	started  bool
	produced uint64
	acked    uint64
	leasedAt time.Duration
	// unread is set if the worker is leaving, and nobody has read any element of the stream there.
	unread bool
	// cleanBelow is an index under any lease: readers have acknowledged all elements below it, and none was an error.
	cleanBelow uint64
	// ackedBelow is an index under any lease: readers have acknowledged all elements below it. acked is the index under
	// this lease.
	ackedBelow uint64
	// sentBelow is what mayBeSentBelow was under older leases.
	sentBelow uint64
	// unreachableReports counts reports of clients that cannot reach the worker; unreachableReason is from the
	// last one.
	unreachableReports int
	unreachableReason  string
	// reporter is the client of the last report, and reportNumber its number.
	reporter     string
	reportNumber uint64
	// avoid names workers that failed the stream.
	avoid []string
	// assignedAt and assignedLease are from the newest assignment to a consumer. releasing is set if the consumer was asked
	// to release the stream for nextConsumer.
	assignedAt    time.Duration
	assignedLease uint64
	releasing     bool
	nextConsumer  string
	// mark names the elements that the worker of a guarded run computes next; nil without a mark.
	mark *pecanv1.MarkElementsRequest
	// markNumber is the number of the newest mark.
	markNumber uint64
	// crashed is set if the worker reported a crash while it opened the stream.
	crashed bool
	// remainders is the closing stream's command in its newest form.
	remainders *pecanv1.StartStream
}

// epochState is the volatile state of an open epoch.
type epochState struct {
	// streams has an entry for each stream that is active, and perhaps for a few others.
	streams map[uint32]*streamState
	// releasing has the streams that a client was asked to release.
	releasing map[uint32]bool
	// watches has the watches of the epoch's clients.
	watches []WatchID
	// orderedPlan is the plan of the streams that run in another order; nil before it is needed.
	orderedPlan *pecanv1.Plan
	// puts and gets count the leases whose streams write a segment of a cache, and read one.
	puts, gets uint32
	// computes counts the leases whose streams compute parts of the cached step.
	computes uint32
	// opened is when the epoch was opened. serving has how many workers served it then. seconds is the time of its trainer.
	opened  time.Duration
	serving servingWorkers
	seconds float64
}

// volatileEpoch returns the volatile state of an epoch. It creates the state when it is first needed.
func (c *Core) volatileEpoch(key passKey) *epochState {
	state := c.epochs[key]
	if state == nil {
		state = &epochState{streams: map[uint32]*streamState{}, releasing: map[uint32]bool{}}
		c.epochs[key] = state
	}
	return state
}

// findVolatile returns the volatile state of a stream, or nil.
func (c *Core) findVolatile(key pecanv1.StreamKey) *streamState {
	if state := c.epochs[passKey{key.Job, key.Epoch}]; state != nil {
		return state.streams[key.Stream]
	}
	return nil
}

// volatileStream returns the volatile state of a stream. It creates the state when it is first needed.
func (c *Core) volatileStream(key pecanv1.StreamKey) *streamState {
	epoch := c.volatileEpoch(passKey{key.Job, key.Epoch})
	s := epoch.streams[key.Stream]
	if s == nil {
		s = &streamState{}
		epoch.streams[key.Stream] = s
	}
	return s
}

// endRelease notes that a stream is no longer to be released.
func (c *Core) endRelease(key pecanv1.StreamKey) {
	if state := c.epochs[passKey{key.Job, key.Epoch}]; state != nil && state.releasing[key.Stream] {
		delete(state.releasing, key.Stream)
		state.streams[key.Stream].releasing = false
	}
}

// volatileStreamNow returns the volatile state of a stream under its newest lease.
func (c *Core) volatileStreamNow(key pecanv1.StreamKey, stream *pecanv1.StoredStream) *streamState {
	volatileStream := c.volatileStream(key)
	if volatileStream.lease != stream.Lease {
		volatileStream.newLease(stream.Lease, c.now)
	}
	return volatileStream
}

// mayBeSentBelow returns an index under all leases: no reader has an element from there on, as far as is known.
func (s *streamState) mayBeSentBelow() uint64 {
	if s.unread {
		return s.sentBelow
	}
	return max(s.sentBelow, s.produced, s.acked)
}

// newLease clears what belongs to an older lease.
func (s *streamState) newLease(lease uint64, now time.Duration) {
	s.sentBelow = s.mayBeSentBelow()
	s.lease, s.leasedAt = lease, now
	s.started, s.unread, s.produced, s.acked, s.unreachableReports, s.unreachableReason, s.remainders, s.mark, s.markNumber, s.crashed = false, false, 0, 0, 0, "", nil, nil, 0, false
}

// dropVolatile drops the volatile state of an epoch.
func (c *Core) dropVolatile(jobID string, epoch *durable.Epoch) {
	delete(c.epochs, passKey{jobID, epoch.Epoch})
	for _, client := range c.clients {
		delete(client.passes, passKey{jobID, epoch.Epoch})
	}
}
