package worker

import (
	"maps"
	"slices"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// forgetAfter is how long the totals of a job are kept that this worker runs nothing of.
const forgetAfter = 10 * time.Minute

// ledger sums up what the nodes of each job's dataset did on this worker. The dispatcher is told totals that only grow, of
// all runs since the account was opened: whichever message arrives last is right, and a stream's end, its lease's or its
// epoch's takes nothing away from them.
type ledger struct {
	mu       sync.Mutex
	accounts map[string]*account
	opened   uint64
}

// account is the totals of one job.
type account struct {
	number, reading uint64
	// done is what runs did that are over; live are those under way.
	done map[string]*pecanv1.NodeMetrics
	live map[*run]bool
	// recovery is what runs that are over did again.
	recovery *pecanv1.Recovery
	// told: nothing has changed since the dispatcher was told last.
	told bool
	used time.Time
}

func newLedger() *ledger { return &ledger{accounts: map[string]*account{}} }

// join counts a run from now on.
func (l *ledger) join(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[r.stream.key.job]
	if a == nil {
		l.opened++
		a = &account{number: l.opened, done: map[string]*pecanv1.NodeMetrics{}, live: map[*run]bool{}, recovery: new(pecanv1.Recovery)}
		l.accounts[r.stream.key.job] = a
	}
	a.live[r], a.used = true, time.Now()
}

// changed notes that a run's figures are new.
func (l *ledger) changed(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[r.stream.key.job]; a != nil && a.live[r] {
		a.told = false
	}
}

// leave takes the last figures of a run over.
func (l *ledger) leave(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[r.stream.key.job]; a != nil && a.live[r] {
		addNodes(a.done, r.nodes())
		a.recovery.Add(r.recovery())
		delete(a.live, r)
		a.told, a.used = false, time.Now()
	}
}

// addNodes adds figures to a sum.
func addNodes(sum map[string]*pecanv1.NodeMetrics, nodes []*pecanv1.NodeMetrics) {
	for _, node := range nodes {
		s := sum[node.GetNode()]
		if s == nil {
			s = &pecanv1.NodeMetrics{Node: node.GetNode(), Op: node.GetOp()}
			sum[node.GetNode()] = s
		}
		s.Elements += node.GetElements()
		s.SelfCpuS += node.GetSelfCpuS()
		s.BytesIn += node.GetBytesIn()
		s.BytesOut += node.GetBytesOut()
	}
}

// news gives the totals of a job that the dispatcher does not have yet; nil when it has them.
func (l *ledger) news(job string) *pecanv1.JobFigures {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[job]
	if a == nil || a.told {
		return nil
	}
	a.told = true
	a.reading++
	sum := map[string]*pecanv1.NodeMetrics{}
	addNodes(sum, slices.Collect(maps.Values(a.done)))
	for r := range a.live {
		addNodes(sum, r.nodes())
	}
	figures := &pecanv1.JobFigures{JobId: job, Account: a.number, Reading: a.reading, Recovery: new(pecanv1.Recovery)}
	figures.Recovery.Add(a.recovery)
	for r := range a.live {
		figures.Recovery.Add(r.recovery())
	}
	for _, name := range slices.Sorted(maps.Keys(sum)) {
		figures.Nodes = append(figures.Nodes, sum[name])
	}
	return figures
}

// jobs are those with an account. Accounts that have rested for long are dropped; a job that comes back gets a new one.
func (l *ledger) jobs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.accounts, func(_ string, a *account) bool {
		return a.told && len(a.live) == 0 && time.Since(a.used) > forgetAfter
	})
	return slices.Sorted(maps.Keys(l.accounts))
}

// untold has everything told again: a new session does not know what arrived in the one before it.
func (l *ledger) untold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.accounts {
		a.told = false
	}
}

// tellFigures queues what is new of jobs for the dispatcher.
func (w *Worker) tellFigures(jobs ...string) {
	for _, job := range jobs {
		if figures := w.ledger.news(job); figures != nil {
			w.session.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Figures{Figures: figures}})
		}
	}
}
