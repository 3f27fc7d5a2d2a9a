package autoscale

import (
	"fmt"
	"math"
)

// Cachew is the scaling of Graur et al., "Cachew: Machine Learning Input Data Processing as a Service" (USENIX ATC 2022),
// section 4.3, for comparison. It adds a remote worker as long as that shortens the time between elements. It compares each
// window with the last one that had another number of workers. With another plan, for example when a cache is complete, it starts
// again at one worker.
type Cachew struct {
	// Up is the gain that one more worker must have. Down is the loss that one worker less may have.
	Up, Down float64
	// Recheck is the number of windows after which a converged job is checked.
	Recheck int
	// QueueGrowth and TimeGrowth are ratios to the converged window that start the search again.
	QueueGrowth, TimeGrowth float64
	// Outlier is the relative change above which a window is ignored; 0 means none is.
	Outlier float64
	// FiniteQueue demands a queue in the converged window for every new search. The code has this fault: a job
	// that converged with an empty queue never gets more workers.
	FiniteQueue bool

	history   []Window
	plan      uint64
	target    int
	converged Window
	stable    int
}

// CachewPaper returns the policy with the constants of the paper. The paper calls growth of the time significant
// without a number; the number is that of the code.
func CachewPaper() *Cachew {
	return &Cachew{Up: 0.03, Down: 0.03, Recheck: 10, QueueGrowth: 1.4, TimeGrowth: 1.5}
}

// CachewCode returns the policy with the constants of the published code.
func CachewCode() *Cachew {
	return &Cachew{Up: 0.07, Down: 0.03, Recheck: 21, QueueGrowth: 1.5, TimeGrowth: 1.5, Outlier: 1.2, FiniteQueue: true}
}

// Next decides from one window.
func (c *Cachew) Next(g Goal, w Window) Decision {
	at := w.Workers.Remote
	reason := "the window does not have the wanted number of workers"
	switch {
	case c.target == 0:
		c.target, c.plan = max(at, 1), w.Plan
	case w.Plan != c.plan:
		c.target, c.plan, c.history, c.converged = 1, w.Plan, nil, Window{}
		reason = "the plan of the job changed, so the search starts again at one worker"
	}
	if at == c.target {
		c.history = append(c.history, w)
		if len(c.history) > 20 {
			c.history = c.history[1:]
		}
		if c.converged.Consumers != nil {
			reason = c.monitor(w)
		} else {
			reason = c.search(w)
		}
	}
	c.target = g.Limits.Clamp(Configuration{Remote: c.target}).Remote
	state := "scaling"
	if c.converged.Consumers != nil {
		state = "converged"
	}
	return Decision{Target: Configuration{Remote: c.target}, State: state, Converged: state == "converged", Reason: reason}
}

func (c *Cachew) search(w Window) string {
	at := w.Workers.Remote
	if len(c.history) == 1 {
		c.target = at + 1
		return "the first window is measured; a second number of workers is needed to compare"
	}
	var before *Window
	for i := range c.history {
		if c.history[i].Workers.Remote != at {
			before = &c.history[i]
		}
	}
	if before == nil {
		c.stop(w)
		return "no earlier window has another number of workers"
	}
	r := 1 - w.MeanTime()/before.MeanTime()
	switch was := before.Workers.Remote; {
	case c.Outlier > 0 && math.Abs(r) > c.Outlier:
		return fmt.Sprintf("the time changed by %.0f %%; the window is ignored", -100*r)
	case was < at && r > c.Up:
		c.target = at + 1
		return fmt.Sprintf("%d workers are %.1f %% faster than %d; more may be faster still", at, 100*r, was)
	case was > at && r > -c.Down && at > 1:
		c.target = at - 1
		return fmt.Sprintf("%d workers are at most %.1f %% slower than %d; fewer may be enough", at, -100*r, was)
	default:
		c.stop(*before)
		return fmt.Sprintf("%d workers change the time by %.1f %%, so the job returns to %d", at, -100*r, was)
	}
}

func (c *Cachew) stop(at Window) {
	c.target, c.converged, c.stable = at.Workers.Remote, at, 0
}

func (c *Cachew) monitor(w Window) string {
	if c.stable++; c.stable < c.Recheck {
		return "the job has converged"
	}
	c.stable = 0
	base := c.converged.Workers.Remote
	q, b := w.Queue()/c.converged.Queue(), w.MeanTime()/c.converged.MeanTime()
	finite := !math.IsInf(q, 0) && !math.IsNaN(q)
	switch {
	case finite && q > c.QueueGrowth && base > 1:
		c.target = base - 1
	case (finite || !c.FiniteQueue) && b > c.TimeGrowth:
		c.target = base + 1
	default:
		return "neither queue nor time grew since the job converged"
	}
	c.history, c.converged = []Window{c.converged}, Window{}
	return fmt.Sprintf("since the job converged, the queue grew by a factor of %.2f and the time by %.2f", q, b)
}
