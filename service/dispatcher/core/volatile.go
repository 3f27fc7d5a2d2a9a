package core

import (
	"fmt"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// clientState is what is known of a live client beside the durable state.
type clientState struct {
	lastSeen time.Duration
	// timeoutUnconfirmed: the client is from before a restart and has not said yet that it knows the timeout, which may have been longer then.
	timeoutUnconfirmed bool
	// jobs says when the client last showed that it holds a job.
	jobs map[string]time.Duration
	// heartbeatNumber is the number of the newest heartbeat, 0 before the first since the dispatcher was started.
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
	// report is the client's last report with its figures; nil before the first.
	report *pecanv1.ClientHeartbeatRequest_Pass
	// seen is when the client last showed that it wants the pass.
	seen time.Duration
}

// reconnectTime is how long a client may be silent that does not know the timeout: it has to find out that the dispatcher is back, at worst
// over a connection that is dead without a word.
const reconnectTime = 20 * time.Second

// maxSilence is how long the client may be silent.
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
	// order in which workers came; breaks ties.
	order                          uint64
	maxStreams, cores              int32
	tensorflow, version, placement string
	graphProducer                  int32
	lastHeartbeat                  time.Duration
	away                           bool
	// leaving: it is about to say goodbye.
	leaving       bool
	awayUntil     time.Duration
	cpuSeconds    float64
	residentBytes int64
	// caches: it has a directory for them; cached is what it did there.
	caches       bool
	cacheMetrics *pecanv1.CacheMetrics
	// crash is what it said that it dies of; empty while it does not.
	crash string
	// connection is the number of its newest connection.
	connection uint64
	// unheardSinceRestart: it has not been heard since the dispatcher was started again.
	unheardSinceRestart bool
	// trying: it was told to try an order of steps, and has not answered.
	trying bool
	// alone is the stream whose mark says that no other one's suspicious elements are made at the same time.
	alone *streamKey
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

// streamState is what is known of a stream of an open epoch beside the durable state.
type streamState struct {
	// lease that the following belong to.
	lease    uint64
	started  bool
	produced uint64
	acked    uint64
	leasedAt time.Duration
	// unread: the worker leaves, and nobody has read any of it there.
	unread bool
	// cleanBelow: its readers had everything below, and none of it was an error; of any lease.
	cleanBelow uint64
	// receivedBelow: its readers had everything below.
	receivedBelow uint64
	// unreachableReports of clients that cannot reach the worker, and what the last one said.
	unreachableReports int
	unreachableReason  string
	// reporter is the client that told it, and reportNumber its number of that.
	reporter     string
	reportNumber uint64
	// avoid names workers that failed the stream or could not be reached for it.
	avoid []string
	// assignedAt: when the present consumer got the stream, under what lease; moving: it shall give it up, to moveTo.
	assignedAt    time.Duration
	assignedLease uint64
	releasing     bool
	nextConsumer  string
	// mark is what the worker is about to make of a stream under suspicion; nil: nothing, or it did not tell.
	mark *pecanv1.MarkElementsRequest
	// markNumber is the number of the newest mark.
	markNumber uint64
	// crashed: its worker says that it dies, and that it was opening the stream.
	crashed bool
	// remainders were sent in this form with the closing stream's lease.
	remainders *pecanv1.StartStream
}

// volatile gives the soft state of a stream, made at the first question.
func (c *Core) volatile(key streamKey) *streamState {
	s, ok := c.streams[key]
	if !ok {
		s = &streamState{}
		c.streams[key] = s
	}
	return s
}

// volatileNow gives the soft state of a stream under the lease that it has, without what belonged to an older one.
func (c *Core) volatileNow(key streamKey, stream *pecanv1.StoredStream) *streamState {
	volatile := c.volatile(key)
	if volatile.lease != stream.Lease {
		volatile.newLease(stream.Lease, c.now)
	}
	return volatile
}

// newLease forgets what belonged to an older lease.
func (s *streamState) newLease(lease uint64, now time.Duration) {
	s.lease, s.leasedAt = lease, now
	s.started, s.unread, s.produced, s.acked, s.unreachableReports, s.unreachableReason, s.remainders, s.mark, s.markNumber, s.crashed = false, false, 0, 0, 0, "", nil, nil, 0, false
}

// dropVolatile drops the soft state of an epoch's streams.
func (c *Core) dropVolatile(jobID string, epoch *pecanv1.StoredEpoch) {
	for _, stream := range epoch.Streams {
		delete(c.streams, streamKey{jobID, epoch.Epoch, stream.Stream})
	}
	delete(c.orderedPlans, passKey{jobID, epoch.Epoch})
	for _, client := range c.clients {
		delete(client.passes, passKey{jobID, epoch.Epoch})
	}
}
