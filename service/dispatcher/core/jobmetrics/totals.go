package jobmetrics

import pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"

// Totals sums what workers did for a job.
type Totals struct {
	// Nodes has the metrics of all streams. Ordered has the part of streams that run their steps in another order than
	// the registered one. Cached and Inline are parts of the registered order: Cached has the streams that read a cache, and
	// Inline has the streams whose steps ran inline.
	Nodes, Ordered, Cached, Inline Profile
	Recovery                       *pecanv1.Recovery
	// Failed counts failed elements of all streams. OrderedFailed counts those of streams in another order.
	Failed, OrderedFailed uint64
	// CPUWait has the seconds of Computed in which threads waited for a core.
	CPUWait float64
}

func newTotals() *Totals {
	return &Totals{Nodes: Profile{}, Ordered: Profile{}, Cached: Profile{}, Inline: Profile{}, Recovery: new(pecanv1.Recovery)}
}

func (t *Totals) add(report *pecanv1.JobMetrics) {
	t.Nodes.Add(report.GetNodes())
	t.Ordered.Add(report.GetOrdered())
	t.Cached.Add(report.GetCached())
	t.Inline.Add(report.GetInline())
	t.Recovery.Add(report.GetRecovery())
	t.Failed += report.GetFailed()
	t.OrderedFailed += report.GetOrderedFailed()
	t.CPUWait += report.GetCpuWaitS()
}

func (t *Totals) addTotals(other *Totals) {
	t.Nodes.Add(other.Nodes.List())
	t.Ordered.Add(other.Ordered.List())
	t.Cached.Add(other.Cached.List())
	t.Inline.Add(other.Inline.List())
	t.Recovery.Add(other.Recovery)
	t.Failed += other.Failed
	t.OrderedFailed += other.OrderedFailed
	t.CPUWait += other.CPUWait
}

// FailsInRegisteredOrder reports whether elements failed in streams that run in the registered order.
func (t *Totals) FailsInRegisteredOrder() bool { return t.Failed > t.OrderedFailed }

// Registered returns the metrics of streams that run in the registered order.
func (t *Totals) Registered() []*pecanv1.NodeMetrics {
	sum := Profile{}
	sum.Add(t.Nodes.List())
	sum.Subtract(t.Ordered.List())
	return sum.List()
}

// Parallel returns the metrics of streams that run in the registered order, and not inline. Inline steps do not wait for a
// thread, so they are measured at a part of the time that the same steps need in parallel.
func (t *Totals) Parallel() []*pecanv1.NodeMetrics {
	sum := Profile{}
	sum.Add(t.Registered())
	sum.Subtract(t.Inline.List())
	return sum.List()
}

// Computed returns the metrics of streams that run all steps, in the registered order.
func (t *Totals) Computed() []*pecanv1.NodeMetrics {
	sum := Profile{}
	sum.Add(t.Registered())
	sum.Subtract(t.Cached.List())
	return sum.List()
}

// CPUWaitShare returns the share of the time of Computed in which threads waited for a core, 0 to 1. computed are its valid nodes.
func (t *Totals) CPUWaitShare(computed []*pecanv1.NodeMetrics) float64 {
	_, all := Busiest(computed)
	if !(all > 0) {
		return 0
	}
	return min(t.CPUWait/all, 1)
}
