package autocache

import "math"

// SourceSample is what reading a source took while a number of workers read it.
type SourceSample struct {
	Workers float64
	// Elements were read in Seconds of threads. All is the time of threads in all steps, those that read included.
	Elements, Seconds, All float64
	// PerSecond is the highest number of elements that all workers together read in a second.
	PerSecond float64
}

const (
	// leastRead is the number of elements from which on a sample counts.
	leastRead = 100
	// slowed is by how much more time an element takes if workers slow each other down. Less may be noise.
	slowed = 1.5
	// mostly is the share of threads' time from which on reading decides the speed.
	mostly = 0.5
)

// FitSource returns the speed that a source has for all workers together. It also returns the time in which a thread reads an
// element while that speed is not reached. The samples are by ascending numbers of workers. The source has a limit if threads mostly
// read, and an element takes longer than with fewer workers. The limit is then the highest speed that was seen. Without such
// a sample nobody knows a limit, and both are 0.
func FitSource(samples []SourceSample) (shared Rate, each float64) {
	each, fastest, limited := math.Inf(1), 0.0, false
	for _, s := range samples {
		if !(s.Elements >= leastRead && known(s.Seconds) && known(s.PerSecond)) {
			continue
		}
		now := s.Seconds / s.Elements
		limited = limited || now > slowed*each && s.Seconds > mostly*s.All
		each, fastest = min(each, now), max(fastest, s.PerSecond)
	}
	if !limited || fastest == 0 {
		return Rate{}, 0
	}
	return Rate{PerElement: 1 / fastest}, each
}
