package jobmetrics

import (
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxReports bounds the worker processes whose totals are kept separately before lost ones are merged.
const maxReports = 4096

// Reports holds what workers reported for one job. The nil Reports is empty.
type Reports struct {
	// newest has the newest totals by worker.
	newest map[string]*report
	// past sums the totals of older generations.
	past *Totals
}

// report is the newest report of one worker.
type report struct {
	metrics *pecanv1.JobMetrics
	// merged means that past contains these totals. A later report of the same generation would count twice.
	merged bool
}

// NewReports returns Reports without any report.
func NewReports() *Reports {
	return &Reports{newest: map[string]*report{}, past: newTotals()}
}

// Add keeps a worker's totals if they are newer than the known ones of the same worker. alive says which workers are
// registered: the totals of others may be merged.
func (r *Reports) Add(workerID string, metrics *pecanv1.JobMetrics, alive func(workerID string) bool) {
	switch known := r.newest[workerID]; {
	case known == nil:
		r.mergeLost(alive)
	case metrics.Generation < known.metrics.Generation,
		metrics.Generation == known.metrics.Generation && (known.merged || metrics.Sequence <= known.metrics.Sequence):
		return
	case metrics.Generation > known.metrics.Generation && !known.merged:
		r.past.add(known.metrics)
	}
	r.newest[workerID] = &report{metrics: metrics}
}

// mergeLost merges the totals of lost workers at every maxReports workers, so that memory stays bounded.
func (r *Reports) mergeLost(alive func(workerID string) bool) {
	if len(r.newest)%maxReports != maxReports-1 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(r.newest)) {
		if known := r.newest[id]; !alive(id) && !known.merged {
			r.past.add(known.metrics)
			known.metrics, known.merged = &pecanv1.JobMetrics{Generation: known.metrics.Generation, Sequence: known.metrics.Sequence}, true
		}
	}
}

// Totals sums all reports.
func (r *Reports) Totals() *Totals {
	sum := newTotals()
	if r == nil {
		return sum
	}
	sum.addTotals(r.past)
	for _, id := range slices.Sorted(maps.Keys(r.newest)) {
		sum.add(r.newest[id].metrics)
	}
	return sum
}
