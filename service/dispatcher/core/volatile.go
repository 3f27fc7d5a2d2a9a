package core

import (
	"fmt"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// clientState is the volatile state of a live client.
type clientState struct {
	lastSeen time.Duration
	// timeoutUnconfirmed: the client joined before a restart and has not confirmed that it knows the timeout. The
	// timeout may have been longer then.
	timeoutUnconfirmed bool
	// jobs has when the client last showed that it holds a job.
	jobs map[string]time.Duration
	// heartbeatNumber is the number of the newest heartbeat, 0 before the first one since the dispatcher started.
	heartbeatNumber uint64
	// passes has the newest report on each pass.
	passes map[passKey]*passState
}

type passKey struct {
	job   string
	epoch uint64
}

type passState struct {
	starved bool
	// report is the client's newest report with its metrics; nil before the first.
	report *pecanv1.ClientHeartbeatRequest_Pass
	// seen is when the client last showed that it wants the pass.
	seen time.Duration
}

// reconnectTime is how long a client may be silent if it does not know the timeout. It must notice that the
// dispatcher is back, in the worst case over a connection that died silently.
const reconnectTime = 20 * time.Second

// maxSilence returns how long the client may be silent.
func (c *clientState) maxSilence(timeout time.Duration) time.Duration {
	if c.timeoutUnconfirmed {
		return max(timeout, reconnectTime)
	}
	return timeout
}

func newClientState(now time.Duration) *clientState {
	return &clientState{lastSeen: now, jobs: map[string]time.Duration{}, passes: map[passKey]*passState{}}
}

// workerState is a registered worker: connected, or away and expected back.
type workerState struct {
	address *pecanv1.WorkerAddress
	session SessionID
	// order is the order in which workers registered. It breaks ties.
	order                          uint64
	maxStreams, cores              int32
	tensorflow, version, placement string
	graphProducer                  int32
	lastHeartbeat                  time.Duration
	away                           bool
	// leaving: the worker will soon say goodbye.
	leaving       bool
	awayUntil     time.Duration
	cpuSeconds    float64
	residentBytes int64
	// caches: the worker has a cache directory. cacheMetrics counts what it did there.
	caches       bool
	cacheMetrics *pecanv1.CacheMetrics
	// crash is the cause of a crash that the worker reported; empty without a report.
	crash string
	// connection is the number of the worker's newest connection.
	connection uint64
	// unheardSinceRestart: the worker held leases before a restart and has not come back.
	unheardSinceRestart bool
	// trying: the worker is trying an order of steps.
	trying bool
	// exclusive is the stream whose guarded elements the worker computes now. It computes none of another stream
	// meanwhile.
	exclusive *streamKey
}

type streamKey struct {
	job    string
	epoch  uint64
	stream uint32
}

func keyOf(id *pecanv1.StreamId) streamKey {
	return streamKey{id.GetJobId(), id.GetEpoch(), id.GetStream()}
}

func (k streamKey) id() *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: k.job, Epoch: k.epoch, Stream: k.stream}
}

func describe(key streamKey) string {
	return fmt.Sprintf("stream %d of epoch %d of job %s", key.stream, key.epoch, key.job)
}

// streamState is the volatile state of a stream in an open epoch.
type streamState struct {
	// lease is the lease to which the fields up to unread belong.
	lease    uint64
	started  bool
	produced uint64
	acked    uint64
	leasedAt time.Duration
	// unread: the worker is leaving, and nobody has read any element of the stream there.
	unread bool
	// cleanBelow: readers received all elements below it, and none was an error; of any lease.
	cleanBelow uint64
	// ackedBelow: readers received all elements below it; of any lease (acked: of this lease).
	ackedBelow uint64
	// unreachableReports counts reports of clients that cannot reach the worker; unreachableReason is from the
	// last one.
	unreachableReports int
	unreachableReason  string
	// reporter is the client of the last report, and reportNumber its number.
	reporter     string
	reportNumber uint64
	// avoid names workers that failed the stream, or that its client could not reach.
	avoid []string
	// assignedAt and assignedLease are from the newest assignment to a consumer. releasing: the consumer was
	// asked to release the stream for nextConsumer.
	assignedAt    time.Duration
	assignedLease uint64
	releasing     bool
	nextConsumer  string
	// mark is what the worker of a guarded stream is about to compute; nil without a mark.
	mark *pecanv1.MarkElementsRequest
	// markNumber is the number of the newest mark.
	markNumber uint64
	// crashed: the worker reported a crash while it opened the stream.
	crashed bool
	// remainders is the closing stream's command in its newest form.
	remainders *pecanv1.StartStream
}

// volatileStream returns the volatile state of a stream. It creates the state when it is first needed.
func (c *Core) volatileStream(key streamKey) *streamState {
	s, ok := c.streams[key]
	if !ok {
		s = &streamState{}
		c.streams[key] = s
	}
	return s
}

// volatileStreamNow returns the volatile state of a stream under its newest lease.
func (c *Core) volatileStreamNow(key streamKey, stream *pecanv1.StoredStream) *streamState {
	volatileStream := c.volatileStream(key)
	if volatileStream.lease != stream.Lease {
		volatileStream.newLease(stream.Lease, c.now)
	}
	return volatileStream
}

// newLease clears what belongs to an older lease.
func (s *streamState) newLease(lease uint64, now time.Duration) {
	s.lease, s.leasedAt = lease, now
	s.started, s.unread, s.produced, s.acked, s.unreachableReports, s.unreachableReason, s.remainders, s.mark, s.markNumber, s.crashed = false, false, 0, 0, 0, "", nil, nil, 0, false
}

// dropVolatile drops the volatile state of an epoch.
func (c *Core) dropVolatile(jobID string, epoch *pecanv1.StoredEpoch) {
	for _, stream := range epoch.Streams {
		delete(c.streams, streamKey{jobID, epoch.Epoch, stream.Stream})
	}
	delete(c.orderedPlans, passKey{jobID, epoch.Epoch})
	for _, client := range c.clients {
		delete(client.passes, passKey{jobID, epoch.Epoch})
	}
}
