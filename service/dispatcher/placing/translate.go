package placing

import (
	"slices"

	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

const (
	// starved is the share of the time waited from which workers are the bound, saturated the busy share of such workers.
	starved   = 0.2
	saturated = 0.9
	// peakWindows is how many of the last windows in which trainers waited count for the rate of a worker.
	peakWindows = 3
	// leastBusy is the least busy share: a worker that produces elements is not idle.
	leastBusy = 0.02
)

// Goal returns what a job wants. No more workers are asked for than can be had.
func Goal(r Request) autoscale.Goal {
	o := r.Options
	bound := func(least, most int32, attainable int) (int, int) {
		limit := attainable
		if most > 0 {
			limit = min(limit, int(most))
		} else if most < 0 {
			limit = 0
		}
		return min(max(int(least), 0), limit), limit
	}
	g := autoscale.Goal{Objective: autoscale.Objective(o.GetObjective()), Prices: r.Prices, Budget: o.GetBudgetPerHour()}
	g.Limits.Min.Remote, g.Limits.Max.Remote = bound(o.GetMinRemote(), o.GetMaxRemote(), r.Remote)
	g.Limits.Min.Local, g.Limits.Max.Local = bound(o.GetMinLocal(), o.GetMaxLocal(), r.Local)
	if g.Limits.Min == (autoscale.Configuration{}) {
		// Without any worker a job stands still.
		if g.Limits.Max.Remote > 0 && g.Limits.Max.Local == 0 {
			g.Limits.Min.Remote = 1
		} else if g.Limits.Max.Local > 0 && g.Limits.Max.Remote == 0 {
			g.Limits.Min.Local = 1
		}
	}
	if r.Window != nil {
		g.Trainers = len(r.Window.Trainers)
	}
	return g
}

// horizon returns how many windows like this one a job has left, if its trainers are to take so many elements.
func horizon(left float64, w autoscale.Window) int {
	if left <= 0 || w.Seconds <= 0 || w.ElementTime() <= 0 {
		return mostHorizon
	}
	windows := left * w.ElementTime() / float64(len(w.Consumers)) / w.Seconds
	return int(min(max(windows, 1), mostHorizon))
}

// windowOf translates a window. The zero window is not usable, and the policy answers with its target.
func (s *search) windowOf(w *measure.Window, plan uint64) autoscale.Window {
	if s.plan != plan {
		s.peaks = [2][]float64{}
	}
	s.plan = plan
	if w == nil {
		return autoscale.Window{Plan: plan}
	}
	out := autoscale.Window{
		End: w.End.Seconds(), Seconds: w.Length.Seconds(), Workers: autoscale.Configuration{Remote: w.Remote, Local: w.Local}, Settled: !w.Disturbed, Gap: w.Gap,
		Plan: plan,
	}
	for _, t := range w.Trainers {
		c := autoscale.Consumer{Host: t.Host, Queue: measure.Median(t.Subs, func(s measure.SubWindow) float64 { return s.Queue })}
		for _, sub := range t.Subs {
			c.ElementTimes, c.Waits = append(c.ElementTimes, sub.ElementTime()), append(c.Waits, sub.Wait())
		}
		out.Consumers = append(out.Consumers, c)
	}
	for _, h := range w.Hosts {
		out.Hosts = append(out.Hosts, autoscale.Host{ID: h.GetHostId(), Pressure: h.GetPressure(), Load: h.GetLoad(), Memory: h.GetMemory(), Network: h.GetNetworkBytesS()})
	}
	waits := out.Wait() >= starved
	if waits {
		s.addPeaks(w.Fleet)
	}
	for _, each := range w.Fleet {
		out.Fleet = append(out.Fleet, autoscale.Worker{
			Host: each.Host, Local: each.Local, Busy: s.busy(each, waits), CPU: min(each.CPU/float64(max(each.Cores, 1)), 1),
			Elements: each.Elements, Bytes: each.Bytes * each.Share,
		})
	}
	s.drain(&out)
	return out
}

// kindOf returns the index of a worker's kind in peaks.
func kindOf(w measure.Serving) int {
	if w.Local {
		return 1
	}
	return 0
}

// addPeaks notes how fast the busy workers of each kind are while trainers wait.
func (s *search) addPeaks(fleet []measure.Serving) {
	var rates [2][]float64
	for _, w := range fleet {
		if kind := kindOf(w); w.Busy >= saturated && w.Elements > 0 {
			rates[kind] = append(rates[kind], w.Elements)
		}
	}
	for kind, all := range rates {
		if len(all) > 0 {
			s.peaks[kind] = append(s.peaks[kind], autoscale.Median(all))
			s.peaks[kind] = s.peaks[kind][max(0, len(s.peaks[kind])-peakWindows):]
		}
	}
}

// busy returns the busy share of a worker. The measurement may miss work that a graph does ahead, into its own buffers.
// So the busy share is at least the current rate divided by the highest rate of its kind while trainers waited. The end of an
// epoch lowers that rate for one window, because workers are then without a stream.
func (s *search) busy(w measure.Serving, starving bool) float64 {
	busy := max(w.Busy, w.CPU/float64(max(w.Cores, 1)), leastBusy)
	if peaks := s.peaks[kindOf(w)]; len(peaks) > 0 && !(starving && w.Busy >= saturated) {
		busy = max(busy, w.Elements/slices.Max(peaks))
	}
	return min(busy, 1)
}

// drain corrects a window in which trainers lived on full buffers: the workers computed without a pause, and produced less
// than was taken. When the buffers are empty, trainers take what is produced.
func (s *search) drain(w *autoscale.Window) {
	produced, taken, busy := 0.0, 0.0, 1.0
	for _, worker := range w.Fleet {
		produced += worker.Elements
		busy = min(busy, worker.Busy)
	}
	for _, c := range w.Consumers {
		if t := autoscale.Median(c.ElementTimes); t > 0 {
			taken += 1 / t
		}
	}
	if produced <= 0 || busy < saturated || produced >= saturated*taken || w.Wait() >= starved {
		return
	}
	stretch := taken / produced
	for i := range w.Consumers {
		c := &w.Consumers[i]
		for j := range c.ElementTimes {
			c.Waits[j] = 1 - (1-c.Waits[j])/stretch
			c.ElementTimes[j] *= stretch
		}
	}
}
