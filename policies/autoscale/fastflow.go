package autoscale

import "fmt"

// FastFlow divides the steps of each element: the first ones run on workers, and the last ones in the trainer's process. The
// Pecan paper gives it two remote and two local workers, for 14 processors of the host per core of the accelerator. It measures
// each way to divide the steps in one window, and keeps the fastest. Nothing changes after that.
type FastFlow struct {
	// Steps is the number of steps of a pipeline. At least the first one runs on workers.
	Steps int

	times []float64
	kept  int
}

// Next implements Policy.
func (f *FastFlow) Next(g Goal, w Window) Decision {
	d := Decision{Target: g.Limits.Clamp(Configuration{Remote: 2, Local: 2}), State: "profile", InTrainer: len(f.times)}
	profiles := func() bool { return d.Target.Local > 0 && d.InTrainer < f.Steps }
	if profiles() && w.MeanTime() > 0 && w.Workers == d.Target {
		if f.times = append(f.times, w.MeanTime()); f.times[d.InTrainer] < f.times[f.kept] {
			f.kept = d.InTrainer
		}
		d.InTrainer++
	}
	if profiles() {
		d.Reason = fmt.Sprintf("the last %d steps in the trainer's process are measured next", d.InTrainer)
		return d
	}
	d.State, d.Converged, d.InTrainer = "fixed", true, f.kept
	d.Reason = fmt.Sprintf("the number of workers is fixed, and the last %d steps run in the trainer's process", f.kept)
	return d
}
