package core

import (
	"fmt"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// clientState is what is known of a live client beside the durable state.
type clientState struct {
	lastSeen time.Duration
	// untold: the client is from before a restart and has not said yet that it knows the timeout, which may have been longer then.
	untold bool
	// jobs says when the client last showed that it holds a job.
	jobs map[string]time.Duration
	// beats is the number of the newest heartbeat, 0 before the first since the dispatcher was started.
	beats uint64
	// passes has the newest report on each pass.
	passes map[passKey]*passState
}

type passKey struct {
	job   string
	epoch uint64
}

type passState struct {
	starved bool
	// told is the client's last report with its figures; nil before the first.
	told *pecanv1.ClientHeartbeatRequest_Pass
	// seen is when the client last showed that it wants the pass.
	seen time.Duration
}

// toldWithin is how long a client may be silent that does not know the timeout: it has to find out that the dispatcher is back, at worst
// over a connection that is dead without a word.
const toldWithin = 20 * time.Second

// mayBeSilent is how long the client may be silent.
func (c *clientState) mayBeSilent(timeout time.Duration) time.Duration {
	if c.untold {
		return max(timeout, toldWithin)
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
	order                      uint64
	maxStreams, cores          int32
	tensorflow, version, where string
	graphProducer              int32
	lastBeat                   time.Duration
	away                       bool
	// leaving: it is about to say goodbye.
	leaving       bool
	awayUntil     time.Duration
	cpuSeconds    float64
	residentBytes int64
	// caches: it has a directory for them; cached is what it did there.
	caches bool
	cached *pecanv1.CacheMetrics
	// crash is what it said that it dies of; empty while it does not.
	crash string
	// connection is the number of its newest connection.
	connection uint64
	// restored: it has not been heard since the dispatcher was started again.
	restored bool
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
	// clean: its readers had everything below, and none of it was an error; of any lease.
	clean uint64
	// had: its readers had everything below.
	had uint64
	// reports of clients that cannot reach the worker, and what the last one said.
	reports  int
	reported string
	// reporter is the client that told it, and reportNumber its number of that.
	reporter     string
	reportNumber uint64
	// avoid names workers that failed the stream or could not be reached for it.
	avoid []string
	// consumedAt: when the present consumer got the stream, under what lease; moving: it shall give it up, to moveTo.
	consumedAt    time.Duration
	consumedUnder uint64
	moving        bool
	moveTo        string
	// mark is what the worker is about to make of a stream under suspicion; nil: nothing, or it did not tell.
	mark *pecanv1.MarkElementsRequest
	// marked is the number of the newest mark.
	marked uint64
	// crashed: its worker says that it dies, and that it was opening the stream.
	crashed bool
	// remainders were sent in this form with the closing stream's lease.
	remainders *pecanv1.StartStream
}

// soft gives the soft state of a stream, made at the first question.
func (c *Core) soft(key streamKey) *streamState {
	s, ok := c.streams[key]
	if !ok {
		s = &streamState{}
		c.streams[key] = s
	}
	return s
}

// softNow gives the soft state of a stream under the lease that it has, without what belonged to an older one.
func (c *Core) softNow(key streamKey, stream *pecanv1.StoredStream) *streamState {
	soft := c.soft(key)
	if soft.lease != stream.Lease {
		soft.newLease(stream.Lease, c.now)
	}
	return soft
}

// newLease forgets what belonged to an older lease.
func (s *streamState) newLease(lease uint64, now time.Duration) {
	s.lease, s.leasedAt = lease, now
	s.started, s.unread, s.produced, s.acked, s.reports, s.reported, s.remainders, s.mark, s.marked, s.crashed = false, false, 0, 0, 0, "", nil, nil, 0, false
}

// forgetEpoch drops the soft state of an epoch's streams.
func (c *Core) forgetEpoch(jobID string, epoch *pecanv1.StoredEpoch) {
	for _, stream := range epoch.Streams {
		delete(c.streams, streamKey{jobID, epoch.Epoch, stream.Stream})
	}
	delete(c.orderedPlans, passKey{jobID, epoch.Epoch})
	for _, client := range c.clients {
		delete(client.passes, passKey{jobID, epoch.Epoch})
	}
}
