package profile

import (
	"maps"
	"slices"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// expireAfter is how long the totals of a job without runs are kept.
const expireAfter = 10 * time.Minute

// Totals sums what the nodes of each job's dataset did on this worker, over all runs of a generation. The
// reported totals only grow, so the message with the highest sequence number is right. The end of a stream,
// lease or epoch subtracts nothing.
type Totals struct {
	mu          sync.Mutex
	jobs        map[string]*counters
	generations uint64
	cores       float64
}

// counters are the totals of one job.
type counters struct {
	generation, sequence uint64
	// done sums the runs that are over; live are the runs under way.
	done *pecanv1.JobMetrics
	live map[Run]bool
	// reported is set if nothing has changed since the last report.
	reported bool
	used     time.Time
	waits    cpuWait
}

// Run is a run whose metrics count in the totals of its job.
type Run interface {
	Job() string
	// Nodes are the metrics of the steps of its graphs.
	Nodes() []*pecanv1.NodeMetrics
	// Failed counts elements that could not be produced, without those whose file was missing or whose error is transient.
	Failed() uint64
	// Reordered reports whether the steps run in another order than the registered one.
	Reordered() bool
	// ReadsCache reports whether the run was to read a segment of a cache.
	ReadsCache() bool
	// Inline reports whether the steps run inline.
	Inline() bool
	// Recovery is what the run recomputed, and how it began.
	Recovery() *pecanv1.Recovery
}

// NewTotals makes an empty Totals of a worker with so many cores.
func NewTotals(cores int) *Totals {
	return &Totals{jobs: map[string]*counters{}, cores: float64(max(cores, 1))}
}

// Add counts a run from now on.
func (t *Totals) Add(r Run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.jobs[r.Job()]
	if a == nil {
		t.generations++
		a = &counters{generation: t.generations, done: &pecanv1.JobMetrics{Recovery: new(pecanv1.Recovery)}, live: map[Run]bool{}}
		t.jobs[r.Job()] = a
	}
	if len(a.live) == 0 {
		a.waits.begin(time.Now())
	}
	a.live[r], a.used = true, time.Now()
}

// Changed records that a run's metrics have changed.
func (t *Totals) Changed(r Run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.jobs[r.Job()]; a != nil && a.live[r] {
		a.reported = false
	}
}

// Remove adds the last metrics of a run to the totals.
func (t *Totals) Remove(r Run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.jobs[r.Job()]; a != nil && a.live[r] {
		addRuns(a.done, r)
		delete(a.live, r)
		a.reported, a.used = false, time.Now()
	}
}

// addRuns adds the metrics of runs to totals. Runs in another order of the steps are also summed separately,
// because the costs of two orders cannot be compared from one sum. The same holds for runs whose steps run inline. Runs that
// read a cache are also summed separately, because they leave steps out.
func addRuns(totals *pecanv1.JobMetrics, runs ...Run) {
	all, ordered, cached, inline := byNode{}, byNode{}, byNode{}, byNode{}
	all.add(totals.Nodes)
	ordered.add(totals.Ordered)
	cached.add(totals.Cached)
	inline.add(totals.Inline)
	for _, r := range runs {
		nodes, failed := r.Nodes(), r.Failed()
		all.add(nodes)
		totals.Failed += failed
		if r.Reordered() {
			ordered.add(nodes)
			totals.OrderedFailed += failed
		} else {
			if r.ReadsCache() {
				cached.add(nodes)
			}
			if r.Inline() {
				inline.add(nodes)
			}
		}
		totals.Recovery.Add(r.Recovery())
	}
	totals.Nodes, totals.Ordered, totals.Cached, totals.Inline = all.list(), ordered.list(), cached.list(), inline.list()
}

// byNode sums metrics by the names of nodes.
type byNode map[string]*pecanv1.NodeMetrics

func (b byNode) add(nodes []*pecanv1.NodeMetrics) {
	for _, node := range nodes {
		s := b[node.GetNode()]
		if s == nil {
			s = &pecanv1.NodeMetrics{Node: node.GetNode()}
			b[node.GetNode()] = s
		}
		s.Add(node)
	}
}

func (b byNode) list() (nodes []*pecanv1.NodeMetrics) {
	for _, name := range slices.Sorted(maps.Keys(b)) {
		nodes = append(nodes, b[name])
	}
	return nodes
}

// Unreported returns the totals of a job that the dispatcher does not have yet; nil if it has them.
func (t *Totals) Unreported(job string) *pecanv1.JobMetrics {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.jobs[job]
	if a == nil || a.reported {
		return nil
	}
	a.reported = true
	a.sequence++
	metrics := &pecanv1.JobMetrics{
		JobId: job, Generation: a.generation, Sequence: a.sequence, Recovery: new(pecanv1.Recovery), Nodes: a.done.Nodes, Ordered: a.done.Ordered, Cached: a.done.Cached, Inline: a.done.Inline,
		Failed: a.done.Failed, OrderedFailed: a.done.OrderedFailed,
	}
	metrics.Recovery.Add(a.done.Recovery)
	addRuns(metrics, slices.Collect(maps.Keys(a.live))...)
	all := seconds(metrics.Nodes)
	metrics.CpuWaitS = a.waits.update(time.Now(), all, all-seconds(metrics.Ordered)-seconds(metrics.Cached), t.cores)
	return metrics
}

// Jobs returns the jobs with counters. Counters that were unused for long are dropped; a job that returns gets a
// new generation.
func (t *Totals) Jobs() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.jobs, func(_ string, a *counters) bool {
		return a.reported && len(a.live) == 0 && time.Since(a.used) > expireAfter
	})
	return slices.Sorted(maps.Keys(t.jobs))
}

// Resend marks all totals as unreported: a new session does not know what arrived in the one before it.
func (t *Totals) Resend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.jobs {
		a.reported = false
	}
}
