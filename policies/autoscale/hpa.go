package autoscale

import (
	"fmt"
	"math"
)

// HPA is the Horizontal Pod Autoscaler of Kubernetes on the workers' use of processors, for comparison. It wants
// ceil(workers × use / target) remote workers, if use / target is not near 1. It grows to at most twice the
// number or by four at once. It shrinks to the largest number that it wanted in the stabilisation time.
type HPA struct {
	// Target is the wanted use of processors, from 0 to 1.
	Target float64
	// Tolerance is how far use / target may be from 1 without a change.
	Tolerance float64
	// Stabilisation is in seconds.
	Stabilisation float64

	wanted []wanted
}

type wanted struct {
	at      float64
	workers int
}

// NewHPA returns the autoscaler with the defaults of Kubernetes and the target of the Cachew paper.
func NewHPA() *HPA { return &HPA{Target: 0.8, Tolerance: 0.1, Stabilisation: 300} }

// Next decides from the mean use of the remote workers' processors.
func (h *HPA) Next(g Goal, w Window) Decision {
	var sum float64
	n := 0
	for _, worker := range w.Fleet {
		if !worker.Local {
			sum, n = sum+worker.CPU, n+1
		}
	}
	now := w.Workers.Remote
	if n == 0 || h.Target <= 0 {
		target := g.Limits.Clamp(Configuration{Remote: max(now, 1)})
		return Decision{Target: target, State: "hpa", Reason: "no remote worker reported its use of processors"}
	}
	use := sum / float64(n)
	want := now
	if math.Abs(use/h.Target-1) > h.Tolerance {
		want = max(int(math.Ceil(float64(now)*use/h.Target-1e-9)), 1)
	}
	want = min(want, max(2*now, now+4))
	h.wanted = append(h.wanted, wanted{w.End, want})
	for h.wanted[0].at < w.End-h.Stabilisation {
		h.wanted = h.wanted[1:]
	}
	stable := want
	for _, earlier := range h.wanted {
		stable = max(stable, min(earlier.workers, now))
	}
	target := g.Limits.Clamp(Configuration{Remote: stable})
	return Decision{
		Target: target, State: "hpa", Converged: target.Remote == now,
		Reason: fmt.Sprintf("the workers use %.0f %% of their processors and the target is %.0f %%, so %d workers are wanted", 100*use, 100*h.Target, want),
	}
}
