package profile

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// leastInterval is the shortest time over which waiting for a core is estimated.
const leastInterval = 200 * time.Millisecond

// cpuWait estimates for how long threads waited for a core. tf.data measures the time of a step from its beginning to its end. If
// more threads run steps than there are cores, that time has their waiting too. In each interval, all steps together have at most
// the time of all cores. The rest is waiting. A step that sleeps counts as one that waits, because other steps run meanwhile.
type cpuWait struct {
	at time.Time
	// all and counted are the seconds of all steps and of those whose waiting counts, at the last estimate. waited is the sum.
	all, counted, waited float64
}

// begin leaves out the time before now, in which nothing ran.
func (w *cpuWait) begin(now time.Time) { w.at = now }

// update returns the sum up to now, if all steps and those that count have so many seconds.
func (w *cpuWait) update(now time.Time, all, counted, cores float64) float64 {
	elapsed := now.Sub(w.at)
	if elapsed < leastInterval {
		return w.waited
	}
	if more, possible := all-w.all, elapsed.Seconds()*cores; more > possible {
		w.waited += max(counted-w.counted, 0) * (1 - possible/more)
	}
	w.at, w.all, w.counted = now, all, counted
	return w.waited
}

// seconds sums the time of steps.
func seconds(nodes []*pecanv1.NodeMetrics) (sum float64) {
	for _, node := range nodes {
		sum += node.GetSelfCpuS()
	}
	return sum
}
