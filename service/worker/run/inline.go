package run

import (
	"math"
	"runtime"
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
	knownAfter = 4
	// remembered is how many of the last comparisons, and recent how many of the last streams, make most of a mean.
	remembered, recent = 5, 4
	// clearly is how many times faster parallel steps must be to run. Inline steps leave more CPU to others.
	clearly = 1.1
	// The slower kind gets another try after so many streams. The number grows with the logarithm of the ratio, so tries
	// cost about 2 % of the time. It does not grow if the slower kind has been faster than the other one now is.
	tryAgain, tryLater = 8, 64
)

// pace says which kind of steps was faster in the streams of a template.
//
// A stream that reads a medium may take twice as long as the one before, and the first epoch longer than later ones. So
// each try of a kind is compared with the streams of the other kind that ran just before.
type pace struct {
	mu sync.Mutex
	// begun counts the streams that could have run inline, and tried those until the last try.
	begun, tried     uint
	parallel, inline speed
	// ratio is the mean logarithm of the time of inline steps divided by that of parallel ones, over so many comparisons.
	ratio       float64
	comparisons int
}

// speed is the mean of the last streams of one kind.
type speed struct {
	streams               int
	perElement, perStream time.Duration
}

// add adds a stream.
func (s *speed) add(perElement, perStream time.Duration) {
	s.streams++
	share := time.Duration(min(s.streams, recent))
	s.perElement += (perElement - s.perElement) / share
	s.perStream += (perStream - s.perStream) / share
}

// prefersInline reports whether the next stream runs inline if it is no try.
func (p *pace) prefersInline() bool { return p.ratio < math.Log(clearly) }

// measured adds a stream that has ended. took is how long its run waited for elements.
func (p *pace) measured(inline bool, elements uint64, took time.Duration) {
	if elements == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.comparisons >= knownAfter
	mine, other := &p.parallel, &p.inline
	if inline {
		mine, other = other, mine
	}
	perElement := max(took/time.Duration(elements), 1)
	mine.add(perElement, took)
	if other.streams == 0 || known && inline == p.prefersInline() || !known && !inline {
		return
	}
	compared := math.Log(float64(perElement) / float64(other.perElement))
	if !inline {
		compared = -compared
	}
	p.comparisons++
	p.ratio += (compared - p.ratio) / float64(min(p.comparisons, remembered))
}

// next reports whether the next stream runs inline.
func (p *pace) next() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
	switch {
	case p.parallel.streams < begins, p.parallel.perStream > mostInline:
		return false
	case p.comparisons < knownAfter:
		return p.begun%2 == 0
	case p.begun-p.tried < p.untilTry():
		return p.prefersInline()
	}
	p.tried = p.begun
	return !p.prefersInline()
}

// untilTry returns how many streams lie between two tries of the slower kind.
func (p *pace) untilTry() uint {
	if p.prefersInline() == (p.inline.perElement < p.parallel.perElement) {
		return tryAgain + uint(tryLater*math.Abs(p.ratio))
	}
	return tryAgain
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
