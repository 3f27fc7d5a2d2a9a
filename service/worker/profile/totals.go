package profile

import (
	"maps"
	"slices"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// expireAfter is how long the totals of a job are kept that this worker runs nothing of.
const expireAfter = 10 * time.Minute

// Totals sums up what the nodes of each job's dataset did on this worker. The dispatcher is told totals that only grow, of
// all runs since the account was opened: whichever message arrives last is right, and a stream's end, its lease's or its
// epoch's takes nothing away from them.
type Totals struct {
	mu          sync.Mutex
	jobs        map[string]*counters
	generations uint64
}

// counters is the totals of one job.
type counters struct {
	generation, sequence uint64
	// done is what runs did that are over; live are those under way.
	done *pecanv1.JobMetrics
	live map[Run]bool
	// reported: nothing has changed since the dispatcher was told last.
	reported bool
	used     time.Time
}

// Run is a run, whose figures count in the totals of its job.
type Run interface {
	Job() string
	// Nodes are the figures of the steps of its graphs.
	Nodes() []*pecanv1.NodeMetrics
	// Failed elements could not be made.
	Failed() uint64
	// Reordered: it runs the steps in another order than the registered one.
	Reordered() bool
	// Recovery is what it did again, and how it began.
	Recovery() *pecanv1.Recovery
}

func NewTotals() *Totals { return &Totals{jobs: map[string]*counters{}} }

// Add counts a run from now on.
func (l *Totals) Add(r Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.jobs[r.Job()]
	if a == nil {
		l.generations++
		a = &counters{generation: l.generations, done: &pecanv1.JobMetrics{Recovery: new(pecanv1.Recovery)}, live: map[Run]bool{}}
		l.jobs[r.Job()] = a
	}
	a.live[r], a.used = true, time.Now()
}

// Changed notes that a run's figures are new.
func (l *Totals) Changed(r Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.jobs[r.Job()]; a != nil && a.live[r] {
		a.reported = false
	}
}

// Remove takes the last figures of a run over.
func (l *Totals) Remove(r Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.jobs[r.Job()]; a != nil && a.live[r] {
		addRuns(a.done, r)
		delete(a.live, r)
		a.reported, a.used = false, time.Now()
	}
}

// addRuns adds the figures of runs to totals. Those of runs in another order of the steps are told apart: what a step costs in one order
// says nothing of the other.
func addRuns(totals *pecanv1.JobMetrics, runs ...Run) {
	all, ordered := byNode{}, byNode{}
	all.add(totals.Nodes)
	ordered.add(totals.Ordered)
	for _, r := range runs {
		nodes, failed := r.Nodes(), r.Failed()
		all.add(nodes)
		totals.Failed += failed
		if r.Reordered() {
			ordered.add(nodes)
			totals.OrderedFailed += failed
		}
		totals.Recovery.Add(r.Recovery())
	}
	totals.Nodes, totals.Ordered = all.list(), ordered.list()
}

// byNode sums up figures by the names of nodes.
type byNode map[string]*pecanv1.NodeMetrics

func (b byNode) add(nodes []*pecanv1.NodeMetrics) {
	for _, node := range nodes {
		s := b[node.GetNode()]
		if s == nil {
			s = &pecanv1.NodeMetrics{Node: node.GetNode(), Op: node.GetOp()}
			b[node.GetNode()] = s
		}
		s.Elements += node.GetElements()
		s.SelfCpuS += node.GetSelfCpuS()
		s.BytesIn += node.GetBytesIn()
		s.BytesOut += node.GetBytesOut()
	}
}

func (b byNode) list() (nodes []*pecanv1.NodeMetrics) {
	for _, name := range slices.Sorted(maps.Keys(b)) {
		nodes = append(nodes, b[name])
	}
	return nodes
}

// Unreported gives the totals of a job that the dispatcher does not have yet; nil when it has them.
func (l *Totals) Unreported(job string) *pecanv1.JobMetrics {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.jobs[job]
	if a == nil || a.reported {
		return nil
	}
	a.reported = true
	a.sequence++
	figures := &pecanv1.JobMetrics{
		JobId: job, Generation: a.generation, Sequence: a.sequence, Recovery: new(pecanv1.Recovery), Nodes: a.done.Nodes, Ordered: a.done.Ordered,
		Failed: a.done.Failed, OrderedFailed: a.done.OrderedFailed,
	}
	figures.Recovery.Add(a.done.Recovery)
	addRuns(figures, slices.Collect(maps.Keys(a.live))...)
	return figures
}

// Jobs are those with an account. Accounts that have rested for long are dropped; a job that comes back gets a new one.
func (l *Totals) Jobs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.jobs, func(_ string, a *counters) bool {
		return a.reported && len(a.live) == 0 && time.Since(a.used) > expireAfter
	})
	return slices.Sorted(maps.Keys(l.jobs))
}

// Resend has everything told again: a new session does not know what arrived in the one before it.
func (l *Totals) Resend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.jobs {
		a.reported = false
	}
}
