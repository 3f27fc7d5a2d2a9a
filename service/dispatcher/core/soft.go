package core

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// clientState is what is known of a live client beside the durable state.
type clientState struct {
	lastSeen time.Duration
	// jobs says when the client last showed that it holds a job.
	jobs map[string]time.Duration
	// passes has the newest report on each pass.
	passes map[passKey]*passState
}

type passKey struct {
	job   string
	epoch uint64
}

type passState struct {
	starved bool
	// seen is when the client last showed that it wants the pass.
	seen time.Duration
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
	awayUntil                  time.Duration
	cpuSeconds                 float64
	residentBytes              int64
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

// streamState is what is known of a stream of an open epoch beside the durable state.
type streamState struct {
	// lease that the following belong to.
	lease    uint64
	started  bool
	produced uint64
	acked    uint64
	leasedAt time.Duration
	// reports of clients that cannot reach the worker, and what the last one said.
	reports  int
	reported string
	// avoid names workers that failed the stream or could not be reached for it.
	avoid []string
	// consumedAt: when the present consumer got the stream; moving: it shall give it up, to moveTo.
	consumedAt time.Duration
	moving     bool
	moveTo     string
	// remainders were sent in this form with the closing stream's lease.
	remainders *pecanv1.StartStream
	// nodes are the newest figures of the run under way, gone those of runs before it.
	nodes []*pecanv1.NodeMetrics
	gone  profile
}

// maxProfiled bounds the nodes of a job that are told apart; a graph has far fewer that yield elements.
const maxProfiled = 4096

// profile sums up what nodes of a graph did, by their names.
type profile map[string]*pecanv1.NodeMetrics

// add gives the profile with figures added to it; a nil one is made at the first.
func (p profile) add(nodes []*pecanv1.NodeMetrics) profile {
	for _, node := range nodes {
		s := p[node.GetNode()]
		if s == nil {
			if len(p) >= maxProfiled {
				continue
			}
			if p == nil {
				p = profile{}
			}
			s = &pecanv1.NodeMetrics{Node: node.GetNode()}
			p[node.GetNode()] = s
		}
		if s.Op == "" {
			s.Op = node.GetOp()
		}
		s.Elements += node.GetElements()
		s.SelfCpuS += node.GetSelfCpuS()
		s.BytesIn += node.GetBytesIn()
		s.BytesOut += node.GetBytesOut()
	}
	return p
}

// list gives the figures by name.
func (p profile) list() []*pecanv1.NodeMetrics {
	var nodes []*pecanv1.NodeMetrics
	for _, name := range sortedKeys(p) {
		nodes = append(nodes, p[name])
	}
	return nodes
}

// gather takes the newest figures of a stream. Figures only grow in a run: smaller ones, or none, are of one that
// began anew.
func (s *streamState) gather(nodes []*pecanv1.NodeMetrics) {
	again, known := len(nodes) == 0, profile{}.add(s.nodes)
	for name, now := range (profile{}).add(nodes) {
		if before := known[name]; before != nil && now.Elements < before.Elements {
			again = true
		}
	}
	if again {
		s.gone = s.gone.add(s.nodes)
	}
	s.nodes = nodes
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

// newLease forgets what belonged to an older lease, but for what its run did.
func (s *streamState) newLease(lease uint64, now time.Duration) {
	s.gone = s.gone.add(s.nodes)
	s.lease, s.leasedAt = lease, now
	s.started, s.produced, s.acked, s.reports, s.reported, s.remainders, s.nodes = false, 0, 0, 0, "", nil, nil
}

// forgetEpoch drops the soft state of an epoch's streams.
func (c *Core) forgetEpoch(jobID string, epoch *pecanv1.StoredEpoch) {
	for _, stream := range epoch.Streams {
		key := streamKey{jobID, epoch.Epoch, stream.Stream}
		if s := c.streams[key]; s != nil {
			c.profiles[jobID] = c.profiles[jobID].add(s.gone.list()).add(s.nodes)
		}
		delete(c.streams, key)
	}
	for _, client := range c.clients {
		delete(client.passes, passKey{jobID, epoch.Epoch})
	}
}
