package autoscale

import (
	"math"
	"slices"
)

// Configuration is a number of workers of each kind. Local workers run on the hosts of the job's trainers.
type Configuration struct {
	Remote, Local int
}

// Window is a measurement window: what a job's clients, workers and hosts reported over some seconds.
type Window struct {
	// End is the time at the end of the window, in seconds of a monotonic clock.
	End float64
	// Seconds is the length of the window.
	Seconds float64
	// Workers is the configuration that was ready during the whole window.
	Workers Configuration
	// Settled is false if the workers of the job changed shortly before the window, or other jobs changed its share of them.
	Settled bool
	// Gap is whether reports are missing, or a training loop paused. Paused is whether it is a pause.
	Gap, Paused bool
	// Plan changes with the order, the cache or the graph of the job.
	Plan uint64

	Consumers []Consumer
	Fleet     []Worker
	Hosts     []Host
}

// Consumer is the report of one trainer.
type Consumer struct {
	Host string
	// ElementTimes has the time between two elements, in seconds, of each sub-window.
	ElementTimes []float64
	// Waits has the share of the time that the trainer waited for an element, of each sub-window.
	Waits []float64
	// Queue is the mean number of ready elements on the client.
	Queue float64
}

// Worker is the report of one worker about the job.
type Worker struct {
	Host  string
	Local bool
	// Busy is the share of the time in which the worker computed elements instead of waiting for room in its
	// windows of ready elements.
	Busy float64
	// CPU is the use of the worker's processors, from 0 to 1.
	CPU float64
	// Elements and Bytes are sent per second.
	Elements, Bytes float64
}

// Host is the report of one host.
type Host struct {
	ID string
	// Pressure is the share of the time in which a runnable thread waited for a processor.
	Pressure float64
	// Load is the number of runnable threads per processor.
	Load float64
	// Memory is the used share of the memory, Network the bytes per second in both directions.
	Memory, Network float64
}

// Usable returns whether the window describes a steady state of some trainer.
func (w Window) Usable() bool { return w.Unusable() == "" }

// Unusable returns why the window does not describe a steady state of some trainer; "" if it does.
func (w Window) Unusable() string {
	switch t := w.ElementTime(); {
	case len(w.Consumers) == 0:
		return "no trainer read for long enough"
	case w.Gap && w.Paused:
		return "a training loop paused"
	case w.Gap:
		return "reports of a trainer are missing"
	case !w.Settled:
		return "other jobs began or ended on the workers"
	case !(t > 0) || math.IsInf(t, 1):
		return "no trainer took elements"
	}
	return ""
}

// MeanTime returns the mean time between two elements over all trainers and sub-windows. The published policies
// use it. It is 0 without measurements.
func (w Window) MeanTime() float64 {
	var sum, n float64
	for _, c := range w.Consumers {
		for _, t := range c.ElementTimes {
			sum, n = sum+t, n+1
		}
	}
	return ratio(sum, n)
}

// ElementTime returns the median of each trainer's sub-windows, averaged over the trainers. It is 0 without
// measurements.
func (w Window) ElementTime() float64 {
	var sum float64
	for _, c := range w.Consumers {
		sum += Median(c.ElementTimes)
	}
	return ratio(sum, float64(len(w.Consumers)))
}

// Wait returns the share of the time that trainers waited: medians, averaged over the trainers.
func (w Window) Wait() float64 {
	var sum float64
	for _, c := range w.Consumers {
		sum += Median(c.Waits)
	}
	return ratio(sum, float64(len(w.Consumers)))
}

// Queue returns the mean number of ready elements, averaged over the trainers.
func (w Window) Queue() float64 {
	var sum float64
	for _, c := range w.Consumers {
		sum += c.Queue
	}
	return ratio(sum, float64(len(w.Consumers)))
}

// Produced returns the elements per second of the workers of a kind, their mean busy share, and their number.
func (w Window) Produced(local bool) (elements, busy float64, workers int) {
	for _, worker := range w.Fleet {
		if worker.Local == local {
			elements, busy, workers = elements+worker.Elements, busy+worker.Busy, workers+1
		}
	}
	return elements, ratio(busy, float64(workers)), workers
}

// Median returns the median of the values; 0 without values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
