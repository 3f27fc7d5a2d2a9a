package run

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// beginning is where a run begins. The reader has reported that it has all elements below wanted. The graph begins
// at start, or the run continues from a checkpoint at or below wanted.
type beginning struct{ start, wanted uint64 }

// beginning returns where a run begins whose reader wants an index: at that index, if the elements before it can
// be skipped. A failed element shifts the rows of later batches. The run therefore begins no later than the
// first failed element.
func (s *Stream) beginning(wanted, clean uint64) beginning {
	if guard := s.command.GetCrashGuard(); guard.GetSerial() {
		// The elements before a suspicious one show which files are open when it is produced. The distance is
		// bounded: if workers die sooner than they produce these elements, the stream would never advance.
		wanted = min(wanted, guard.GetFirst()-min(guard.GetFirst(), farElements))
	}
	at := beginning{wanted: wanted}
	switch s.command.GetPlan().GetResume().GetStrategy() {
	case pecanv1.Resume_SEEK, pecanv1.Resume_PARTIAL:
		if !s.command.GetClosing() {
			at.start = min(wanted, clean)
		}
	}
	return at
}

// fromDispatcher returns where a run begins according to the dispatcher.
func (s *Stream) fromDispatcher() beginning {
	return s.beginning(max(s.command.GetAckedBelow(), s.command.GetCleanBelow()), s.command.GetCleanBelow())
}

// farElements is the distance that counts as far for a run without any element yet.
const farElements = 64

// isFarAhead reports whether producing up to an index takes longer than opening the graph again at it, judged by
// the run's elements so far. If a part of the graph always runs from its start, the cost of opening is unknown
// and the result is false.
func (r *run) isFarAhead(start uint64) bool {
	from, next := r.window.Span()
	if r.command.GetPlan().GetResume().GetStrategy() != pecanv1.Resume_SEEK || start <= next || r.state().ended {
		return false
	}
	r.mu.Lock()
	opened, opening := r.opened, r.opening
	r.mu.Unlock()
	if opened.IsZero() || next == from {
		return start-next >= farElements
	}
	each := time.Since(opened) / time.Duration(next-from)
	return float64(each)*float64(start-next) > 2*float64(opening)
}

// Recovery returns what the run recomputed, and how it began.
func (r *run) Recovery() *pecanv1.Recovery {
	out := &pecanv1.Recovery{Saved: r.saver.saved.Load(), NotSaved: r.saver.notSaved.Load(), Damaged: r.saver.damaged.Load()}
	again, from := r.window.Recomputed()
	out.Recomputed = again
	switch {
	case r.saver.restored.Load():
		out.Restored = 1
	case from > 0:
		out.Started = 1
	}
	return out
}
