package measure

import (
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// keptSubWindows bounds the sub-windows of a trainer that are kept.
	keptSubWindows = 64
	// longStep is a factor over the median step. A sub-window shows an interruption if the trainer's own part, or its pause
	// between epochs, is longer than that, and longer than longSeconds. The trainer then evaluated its model or wrote a
	// checkpoint.
	longStep    = 3
	longSeconds = 2
)

// SubWindow counts the elements that a trainer took in a part of a measurement window.
type SubWindow struct {
	Begin, End time.Duration
	Elements   uint64
	// Waited is in seconds. Queue is the mean number of ready elements. Paused is how long the trainer did not read between
	// epochs, in seconds.
	Waited, Queue, Paused float64
	// Lost is set if reports of sub-windows before it are missing.
	Lost bool
}

// Seconds returns the length of the sub-window, without pauses.
func (s SubWindow) Seconds() float64 { return (s.End - s.Begin).Seconds() - s.Paused }

// ElementTime returns the time between two elements, in seconds.
func (s SubWindow) ElementTime() float64 { return s.Seconds() / float64(max(s.Elements, 1)) }

// Wait returns the share of the time that the trainer waited.
func (s SubWindow) Wait() float64 { return min(s.Waited/max(s.Seconds(), 1e-9), 1) }

// Consumer has the newest sub-windows of one trainer. The zero Consumer is ready.
type Consumer struct {
	subs []SubWindow
	last uint64
}

// Add adds the sub-windows that a heartbeat brought at the time now. Repeated ones change nothing.
func (c *Consumer) Add(now time.Duration, reported []*pecanv1.SubWindow) {
	for _, r := range reported {
		if r.GetNumber() <= c.last {
			continue
		}
		end := now - seconds(r.GetAgeS())
		sub := SubWindow{
			Begin: end - seconds(r.GetSeconds()+r.GetPausedS()), End: end, Elements: r.GetElements(), Waited: r.GetWaitedS(), Queue: r.GetQueue(),
			Paused: r.GetPausedS(), Lost: c.last > 0 && r.GetNumber() != c.last+1,
		}
		c.last = r.GetNumber()
		if c.subs = append(c.subs, sub); len(c.subs) > keptSubWindows {
			c.subs = slices.Delete(c.subs, 0, len(c.subs)-keptSubWindows)
		}
	}
}

// Since returns the sub-windows that began at a time or later.
func (c *Consumer) Since(from time.Duration) []SubWindow {
	i, _ := slices.BinarySearchFunc(c.subs, from, func(s SubWindow, at time.Duration) int {
		if s.Begin < at {
			return -1
		}
		return 1
	})
	return c.subs[i:]
}

// Newest returns the end of the newest sub-window; 0 without one.
func (c *Consumer) Newest() time.Duration {
	if len(c.subs) == 0 {
		return 0
	}
	return c.subs[len(c.subs)-1].End
}

// own returns the part of the sub-window in which the trainer did not wait, in seconds.
func (s SubWindow) own() float64 { return s.Seconds() - s.Waited }

// Gap reports whether sub-windows do not follow each other, or whether the training loop paused for long in one of them. A long
// wait for an element is no pause: it shows that workers are slow. Neither is the end of an epoch: epochs may be shorter than
// a measurement window.
func Gap(subs []SubWindow) bool {
	longest := max(Median(subs, SubWindow.own)*longStep, longSeconds)
	return Lost(subs) || slices.ContainsFunc(subs, func(s SubWindow) bool { return max(s.own(), s.Paused) > longest })
}

// Lost reports whether reports between sub-windows are missing.
func Lost(subs []SubWindow) bool {
	return slices.ContainsFunc(subs[min(1, len(subs)):], func(s SubWindow) bool { return s.Lost })
}

// Median returns the median of a figure; 0 without sub-windows.
func Median(subs []SubWindow, figure func(SubWindow) float64) float64 {
	if len(subs) == 0 {
		return 0
	}
	var values []float64
	for _, s := range subs {
		values = append(values, figure(s))
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
