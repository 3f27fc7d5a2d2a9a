package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Bounds of what is remembered of a job: nodes that are told apart (a graph has far fewer that yield elements), and worker
// processes whose totals are kept apart.
const (
	maxProfiled = 4096
	maxAccounts = 4096
)

// profile sums up what nodes of a graph did, by their names.
type profile map[string]*pecanv1.NodeMetrics

// add adds figures to the profile.
func (p profile) add(nodes []*pecanv1.NodeMetrics) {
	for _, node := range nodes {
		s := p[node.GetNode()]
		if s == nil {
			if len(p) >= maxProfiled {
				continue
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
}

// list gives the figures by name.
func (p profile) list() []*pecanv1.NodeMetrics {
	var nodes []*pecanv1.NodeMetrics
	for _, name := range sortedKeys(p) {
		nodes = append(nodes, p[name])
	}
	return nodes
}

// less takes figures off: what is left was done otherwise, or later.
func (p profile) less(nodes []*pecanv1.NodeMetrics) {
	for _, node := range nodes {
		s := p[node.GetNode()]
		if s == nil {
			continue
		}
		s.Elements -= min(s.Elements, node.GetElements())
		s.SelfCpuS = max(0, s.SelfCpuS-node.GetSelfCpuS())
		s.BytesIn -= min(s.BytesIn, node.GetBytesIn())
		s.BytesOut -= min(s.BytesOut, node.GetBytesOut())
	}
}

// totals are sums of what workers did for a job. ordered is the part of nodes, and orderedFailed that of failed elements, that streams did
// which run in another order of the steps.
type totals struct {
	nodes, ordered        profile
	recovery              *pecanv1.Recovery
	failed, orderedFailed uint64
}

func newTotals() *totals {
	return &totals{nodes: profile{}, ordered: profile{}, recovery: new(pecanv1.Recovery)}
}

func (t *totals) add(told *pecanv1.JobMetrics) {
	t.nodes.add(told.GetNodes())
	t.ordered.add(told.GetOrdered())
	t.recovery.Add(told.GetRecovery())
	t.failed += told.GetFailed()
	t.orderedFailed += told.GetOrderedFailed()
}

// registered are the figures of streams that run in the registered order.
func (t *totals) registered() []*pecanv1.NodeMetrics {
	sum := profile{}
	sum.add(t.nodes.list())
	sum.less(t.ordered.list())
	return sum.list()
}

// jobFigures is what the workers told of a job. Each worker process tells totals of its own, which stay when it is lost:
// whatever it did until then is done. Neither streams, leases nor epochs matter, so nothing hangs on the order in which
// their ends and the totals arrive.
type jobFigures struct {
	// told has the newest totals by worker.
	told map[string]*account
	// before has those that were followed by new ones of the same worker.
	before *totals
}

// account is the newest totals of one worker.
type account struct {
	told *pecanv1.JobMetrics
	// closed: what it says is in before, and whatever comes of it would count twice.
	closed bool
}

// figures takes totals that are newer than those that are known of the same account.
func (c *Core) figures(workerID string, told *pecanv1.JobMetrics) {
	if c.state.jobs[told.JobId] == nil {
		return
	}
	job := c.profiles[told.JobId]
	if job == nil {
		job = &jobFigures{told: map[string]*account{}, before: newTotals()}
		c.profiles[told.JobId] = job
	}
	switch known := job.told[workerID]; {
	case known == nil:
		c.makeRoom(job)
	case told.Generation < known.told.Generation, told.Generation == known.told.Generation && (known.closed || told.Sequence <= known.told.Sequence):
		return
	case told.Generation > known.told.Generation && !known.closed:
		job.before.add(known.told)
	}
	job.told[workerID] = &account{told: told}
}

// makeRoom merges the totals of lost workers when there are many.
func (c *Core) makeRoom(job *jobFigures) {
	if len(job.told)%maxAccounts != maxAccounts-1 {
		return
	}
	for _, id := range sortedKeys(job.told) {
		if known := job.told[id]; c.workers[id] == nil && !known.closed {
			job.before.add(known.told)
			known.told, known.closed = &pecanv1.JobMetrics{Generation: known.told.Generation, Sequence: known.told.Sequence}, true
		}
	}
}

// totals sums a job's figures up.
func (c *Core) totals(jobID string) *totals {
	sum, job := newTotals(), c.profiles[jobID]
	if job == nil {
		return sum
	}
	sum.nodes.add(job.before.nodes.list())
	sum.ordered.add(job.before.ordered.list())
	sum.recovery.Add(job.before.recovery)
	sum.failed, sum.orderedFailed = job.before.failed, job.before.orderedFailed
	for _, id := range sortedKeys(job.told) {
		sum.add(job.told[id].told)
	}
	return sum
}
