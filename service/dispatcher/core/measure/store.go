package measure

import (
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// StoreUse is what several workers together read from the store of caches, or wrote, in some seconds.
type StoreUse struct {
	Workers                  int
	Elements, Bytes, Seconds float64
}

// Store measures how fast workers use the store together, in one direction. The zero Store is ready.
type Store struct {
	interval interval
	sum      StoreUse
	// bytes and elements are the uses with the most of them per second; zero before several workers have used the store.
	bytes, elements StoreUse
}

// Add adds what a worker has transferred between two reports, which comes at the time now. A report of production is the newest
// one until the next, so what a lost report had does not count.
func (s *Store) Add(now time.Duration, worker string, before, after []*pecanv1.StoreTransfer) {
	last, newest := newestTransfer(before), newestTransfer(after)
	same := last.GetElements() == newest.GetElements() && last.GetBytes() == newest.GetBytes() && last.GetSeconds() == newest.GetSeconds()
	if len(before) == 0 || newest == nil || same || !s.interval.add(now, worker) {
		return
	}
	s.sum.Elements, s.sum.Bytes = s.sum.Elements+float64(newest.Elements), s.sum.Bytes+float64(newest.Bytes)
	workers, seconds, ended := s.interval.end(now)
	if !ended {
		return
	}
	use := s.sum
	if use.Workers, use.Seconds, s.sum = workers, seconds, (StoreUse{}); workers < 2 {
		return
	}
	if use.Bytes*s.bytes.Seconds >= s.bytes.Bytes*seconds {
		s.bytes = use
	}
	if use.Elements*s.elements.Seconds >= s.elements.Elements*seconds {
		s.elements = use
	}
}

// newestTransfer returns the newest transfer of production; nil without one.
func newestTransfer(list []*pecanv1.StoreTransfer) *pecanv1.StoreTransfer {
	for _, t := range slices.Backward(list) {
		if !t.GetProbe() {
			return t
		}
	}
	return nil
}

// Uses returns the fastest uses by several workers.
func (s *Store) Uses() (fastest []StoreUse) {
	if s.bytes.Workers > 0 {
		fastest = []StoreUse{s.bytes, s.elements}
	}
	return fastest
}
