package run

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
)

// Steps that run inline need less CPU, because an element stays in one thread. Steps that run in parallel use all cores for
// one stream. So the streams of a template run inline under three conditions:
//   - There is a stream that computes for each core.
//   - The streams are short: none computes for long on one core after the others have ended.
//   - They were not measured to be slower.

const (
	// mostInline is the longest stream that may run inline, by its time with parallel steps.
	mostInline = time.Second
	// begins is the number of streams that run with parallel steps at first, without the first stream of each iterator.
	begins = 2
	// knownAfter is the number of comparisons after which the faster kind runs. Until then the kinds take turns.
	knownAfter = 6
	// remembered is how many of the last comparisons make most of their mean.
	remembered = 8
	// recent is the number of last streams whose median counts.
	recent = 5
	// clearly is how many times faster parallel steps must be to run. Inline steps leave more CPU to others.
	clearly = 1.12
	// most is the largest logarithm of a ratio that counts, because the first streams of an epoch wait for other things.
	most = 0.4
	// The slower kind gets another try after tryAgain streams, and more the slower it is: tryLater for each unit of the
	// logarithm of the ratio.
	tryAgain, tryLater = 8, 150
)

// pace says which kind of steps was faster in the streams of a template.
//
// A stream that reads a medium may take twice as long as the one before, and the first epoch longer than later ones. So
// each try of a kind is compared with the streams of the other kind that ran just before.
type pace struct {
	mu sync.Mutex
	// begun counts the streams that could have run inline, and tried those until the last try.
	begun, tried uint
	// parallel and inline are the times per element of each kind, and stream is the time of a stream with parallel steps.
	parallel, inline, stream times
	// ratio is the mean logarithm of the time of inline steps divided by that of parallel ones, over so many comparisons.
	ratio       float64
	comparisons int
}

// times are the times of the last streams of a kind.
type times struct {
	streams int
	last    [recent]time.Duration
}

func (t *times) add(took time.Duration) {
	t.last[t.streams%recent] = took
	t.streams++
}

// median returns the median of the last times, which must not be empty. Single slow streams do not change it.
func (t *times) median() time.Duration {
	sorted := t.last
	n := min(t.streams, recent)
	slices.Sort(sorted[:n])
	return sorted[n/2]
}

// prefersInline reports whether comparisons showed that streams should run inline.
func (p *pace) prefersInline() bool { return p.ratio < math.Log(clearly) }

// doubtful reports whether it is not known which kind is faster: too few comparisons were made, or the last streams of
// each kind show the opposite.
func (p *pace) doubtful() bool {
	lastFaster := float64(p.inline.median()) < clearly*float64(p.parallel.median())
	return p.comparisons < knownAfter || p.prefersInline() != lastFaster
}

// measured adds a stream that has ended. took is how long its run waited for elements.
func (p *pace) measured(inline bool, elements uint64, took time.Duration) {
	if elements == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	isTry := p.comparisons < knownAfter || inline != p.prefersInline()
	mine, other := &p.parallel, &p.inline
	if inline {
		mine, other = other, mine
	} else {
		p.stream.add(took)
	}
	perElement := max(took/time.Duration(elements), 1)
	mine.add(perElement)
	if isTry && other.streams > 0 {
		p.compare(inline, math.Log(float64(perElement)/float64(other.median())))
	}
}

// compare adds the logarithm of the time of a try divided by that of the other kind.
func (p *pace) compare(inline bool, ratio float64) {
	if !inline {
		ratio = -ratio
	}
	ratio = min(max(ratio, -most), most)
	p.comparisons++
	p.ratio += (ratio - p.ratio) / float64(min(p.comparisons, remembered))
}

// next reports whether the next stream runs inline.
func (p *pace) next() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
	switch {
	case p.parallel.streams < begins, p.stream.median() > mostInline:
		return false
	case p.doubtful():
		return p.begun%2 == 0
	case p.begun-p.tried < tryAgain+uint(tryLater*math.Abs(p.ratio)):
		return p.prefersInline()
	}
	p.tried = p.begun
	return !p.prefersInline()
}

// mayRunInline reports whether the stream runs inline. The state of a checkpoint fits only parallel steps. Where costs of
// orders are compared, the dispatcher does not allow it, because only equal kinds can be compared. A closing stream waits
// for other streams, so its time says nothing.
func (r *run) mayRunInline(t template) bool {
	return r.command.GetMayRunInline() && t.WhyNotInline() == nil && tf.CanKeepToThread() && !r.saves() && !r.command.GetClosing() &&
		r.stream.streams.crowded() && t.pace.next()
}

// crowded reports whether the worker may run a stream for each core, and has one that computes.
func (ss *Streams) crowded() bool {
	cores := runtime.NumCPU()
	if ss.Options.MaxStreams < cores {
		return false
	}
	for _, s := range ss.held() {
		if s.computes() {
			cores--
		}
	}
	return cores <= 0
}

// computes reports whether the stream's run opens its graphs or computes elements. A closing stream waits for others most
// of the time.
func (s *Stream) computes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || s.command.GetClosing() {
		return false
	}
	state := s.run.state()
	return !state.ended && state.failed == nil && !s.run.window.WaitsForRoom()
}
