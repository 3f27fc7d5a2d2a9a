package measure

import (
	"slices"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// keptTotals bounds the reports of a worker that are kept.
const keptTotals = 16

// Worker has the newest totals of one worker. The zero Worker is ready.
type Worker struct {
	reports  []totals
	produced []produced
}

// produced sums the worker's work for one job. worked has the seconds of its steps that run one element at a time. read is what
// the worker has read for it, if it has reported that.
type produced struct {
	job      string
	elements uint64
	worked   float64
	read     Reading
	reported bool
}

// totals sums a worker's work from its start to one time.
type totals struct {
	at                             time.Duration
	uptime, computed, blocked, cpu float64
	sent                           uint64
	jobs                           []produced
}

// Rates has a worker's work in a period.
type Rates struct {
	// Busy is the share of the time in which runs computed instead of waiting for room. The buffers of a graph hide that
	// a run computes ahead, so the time of steps that run one element at a time counts too.
	Busy float64
	// CPU is the number of processors that the worker used.
	CPU float64
	// Elements of the job that were produced, and Bytes of all jobs that were sent, per second.
	Elements, Bytes float64
	// Share is the job's share of the elements of all jobs.
	Share float64
}

// Produced counts elements that the worker has produced for a job.
func (w *Worker) Produced(job string, elements uint64) { w.jobOf(job).elements += elements }

// Worked sets the time that the steps of a job have taken on the worker so far.
func (w *Worker) Worked(job string, nodes []*pecanv1.NodeMetrics) {
	sum := 0.0
	for _, node := range nodes {
		// A step with parallel calls takes several seconds per second, and nobody knows how many are possible.
		if op := node.GetOp(); !strings.Contains(op, "Parallel") && !strings.Contains(op, "MapAndBatch") {
			sum += node.GetSelfCpuS()
		}
	}
	w.jobOf(job).worked = sum
}

func (w *Worker) jobOf(job string) *produced {
	for i := range w.produced {
		if w.produced[i].job == job {
			return &w.produced[i]
		}
	}
	w.produced = append(w.produced, produced{job: job})
	return &w.produced[len(w.produced)-1]
}

// Forget drops a job.
func (w *Worker) Forget(job string) {
	w.produced = slices.DeleteFunc(w.produced, func(p produced) bool { return p.job == job })
}

// Add adds the totals of a heartbeat that came at the time now. Totals that went back come from a new process.
func (w *Worker) Add(now time.Duration, h *pecanv1.WorkerHeartbeat) {
	if h.GetUptimeS() <= 0 {
		return
	}
	if n := len(w.reports); n > 0 && h.GetUptimeS() <= w.reports[n-1].uptime {
		w.reports = nil
	}
	if len(w.reports) >= keptTotals {
		w.reports = slices.Delete(w.reports, 0, 1)
	}
	w.reports = append(w.reports, totals{now, h.GetUptimeS(), h.GetComputedS(), h.GetBlockedS(), h.GetCpuS(), h.GetSentBytes(), slices.Clone(w.produced)})
}

// Rates returns what the worker did between the first report at from or later and the newest one. It is false if there
// are no two reports.
func (w *Worker) Rates(job string, from time.Duration) (Rates, bool) {
	i := slices.IndexFunc(w.reports, func(t totals) bool { return t.at >= from })
	if i < 0 || i == len(w.reports)-1 {
		return Rates{}, false
	}
	first, last := w.reports[i], w.reports[len(w.reports)-1]
	elapsed := last.uptime - first.uptime
	computed, blocked := max(last.computed-first.computed, 0), max(last.blocked-first.blocked, 0)
	r := Rates{CPU: max(last.cpu-first.cpu, 0) / elapsed, Bytes: difference(last.sent, first.sent) / elapsed}
	all, worked := 0.0, 0.0
	for _, each := range last.jobs {
		before := find(first.jobs, each.job)
		n := difference(each.elements, before.elements)
		worked += max(each.worked-before.worked, 0)
		if all += n; each.job == job {
			r.Elements = n / elapsed
		}
	}
	if computed+blocked > 0 {
		r.Busy = min(max(computed, worked)/(computed+blocked), 1)
	}
	if all > 0 {
		r.Share = r.Elements * elapsed / all
	}
	return r, true
}

// find returns what is known of a job; zero for a job that is not in the list.
func find(list []produced, job string) produced {
	if i := slices.IndexFunc(list, func(p produced) bool { return p.job == job }); i >= 0 {
		return list[i]
	}
	return produced{}
}

func difference(now, before uint64) float64 {
	if now < before {
		return 0
	}
	return float64(now - before)
}
