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

// jobFigures is what the workers told of a job. Each worker process tells totals of its own, which stay when it is lost:
// whatever it did until then is done. Neither streams, leases nor epochs matter, so nothing hangs on the order in which
// their ends and the totals arrive.
type jobFigures struct {
	// told has the newest totals by worker.
	told map[string]*account
	// before and recovery have those that were followed by new ones of the same worker.
	before   profile
	recovery *pecanv1.Recovery
}

// account is the newest totals of one worker.
type account struct {
	number, reading uint64
	nodes           []*pecanv1.NodeMetrics
	recovery        *pecanv1.Recovery
	// closed: what it says is in before, and whatever comes of it would count twice.
	closed bool
}

// figures takes totals that are newer than those that are known of the same account.
func (c *Core) figures(workerID string, told *pecanv1.JobFigures) {
	if c.state.jobs[told.JobId] == nil {
		return
	}
	job := c.profiles[told.JobId]
	if job == nil {
		job = &jobFigures{told: map[string]*account{}, before: profile{}, recovery: new(pecanv1.Recovery)}
		c.profiles[told.JobId] = job
	}
	known := job.told[workerID]
	switch {
	case known == nil:
		c.makeRoom(job)
	case told.Account < known.number, told.Account == known.number && (known.closed || told.Reading <= known.reading):
		return
	case told.Account > known.number:
		job.before.add(known.nodes)
		job.recovery.Add(known.recovery)
	}
	job.told[workerID] = &account{number: told.Account, reading: told.Reading, nodes: told.Nodes, recovery: told.Recovery}
}

// makeRoom merges the totals of lost workers when there are many.
func (c *Core) makeRoom(job *jobFigures) {
	if len(job.told)%maxAccounts != maxAccounts-1 {
		return
	}
	for _, id := range sortedKeys(job.told) {
		if known := job.told[id]; c.workers[id] == nil && !known.closed {
			job.before.add(known.nodes)
			job.recovery.Add(known.recovery)
			known.nodes, known.recovery, known.closed = nil, nil, true
		}
	}
}

// nodes sums a job's figures up.
func (c *Core) nodes(jobID string) []*pecanv1.NodeMetrics {
	sum, job := profile{}, c.profiles[jobID]
	if job == nil {
		return nil
	}
	sum.add(job.before.list())
	for _, id := range sortedKeys(job.told) {
		sum.add(job.told[id].nodes)
	}
	return sum.list()
}

// recovery sums up what a job's workers did again.
func (c *Core) recovery(jobID string) *pecanv1.Recovery {
	sum, job := new(pecanv1.Recovery), c.profiles[jobID]
	if job == nil {
		return sum
	}
	sum.Add(job.recovery)
	for _, told := range job.told {
		sum.Add(told.recovery)
	}
	return sum
}
