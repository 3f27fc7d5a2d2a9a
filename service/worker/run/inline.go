package run

import (
	"math/bits"
	"runtime"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
)

// Steps that run inline need less CPU, because an element stays in one thread. Steps that run in parallel use all cores for
// one stream. So the streams of a template run inline under three conditions:
//   - There is a stream that computes for each core.
//   - The streams are short: none computes for long on one core after the others have ended.
//   - They were measured to be faster.

// The longest stream that may run inline, by its time with parallel steps. A template's time is known after this number
// of streams, without the first stream of each iterator.
const (
	mostInline = time.Second
	knownAfter = 2
)

// pace is how fast the streams of a template were.
type pace struct {
	mu sync.Mutex
	// begun counts the streams that could have run inline.
	begun            uint
	parallel, inline speed
}

// speed is the mean of the last streams of one kind.
type speed struct {
	streams               int
	perElement, perStream time.Duration
}

// add adds a stream. Each counts a quarter of the mean.
func (s *speed) add(elements uint64, took time.Duration) {
	each := took / time.Duration(elements)
	if s.streams++; s.streams == 1 {
		s.perElement, s.perStream = each, took
		return
	}
	s.perElement += (each - s.perElement) / 4
	s.perStream += (took - s.perStream) / 4
}

// measured adds a stream that has ended. took is how long its run waited for elements.
func (p *pace) measured(inline bool, elements uint64, took time.Duration) {
	if elements == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if inline {
		p.inline.add(elements, took)
	} else {
		p.parallel.add(elements, took)
	}
}

// next reports whether the next stream runs inline. The slower kind gets another try after 2, 4, 8 and so on streams.
func (p *pace) next() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
	switch {
	case p.parallel.streams < knownAfter, p.parallel.perStream > mostInline:
		return false
	case p.inline.streams < knownAfter:
		return true
	}
	faster := p.inline.perElement < p.parallel.perElement
	return faster != (bits.OnesCount(p.begun) == 1)
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
