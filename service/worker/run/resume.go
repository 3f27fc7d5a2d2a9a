package run

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// beginning is where a run of a stream begins. What lies below wanted is with the reader, as far as is known; the graph begins at
// start, or the run goes on from a checkpoint at or below wanted.
type beginning struct{ start, wanted uint64 }

// beginning is where a run begins that is wanted from an index on: there, if what comes before can be left out. A failed element
// shifts what a batch above it holds, so it counts only as far as no element has failed.
func (s *Stream) beginning(wanted, clean uint64) beginning {
	if suspicion := s.order.GetCrashGuard(); suspicion.GetSerial() {
		// Elements before show which files are open when a suspicious one is made. Not for those whose workers are killed: they would not come
		// further where a worker lives for fewer elements than that.
		wanted = min(wanted, suspicion.GetFirst()-min(suspicion.GetFirst(), farElements))
	}
	at := beginning{wanted: wanted}
	switch s.order.GetPlan().GetResume().GetStrategy() {
	case pecanv1.Resume_SEEK, pecanv1.Resume_PARTIAL:
		if !s.order.GetClosing() {
			at.start = min(wanted, clean)
		}
	}
	return at
}

// fromDispatcher is where a run begins as far as the dispatcher knows.
func (s *Stream) fromDispatcher() beginning {
	return s.beginning(max(s.order.GetAckedBelow(), s.order.GetCleanBelow()), s.order.GetCleanBelow())
}

// farElements is how many elements are a long way for a run that has not made one yet.
const farElements = 64

// isFarAhead tells whether running up to an index takes longer than opening the stream's graph anew for it, as far as its elements so
// far tell. Where a part of the graph runs from its start in any case, nothing is known of what that takes.
func (r *run) isFarAhead(start uint64) bool {
	from, next := r.window.Span()
	if r.order.GetPlan().GetResume().GetStrategy() != pecanv1.Resume_SEEK || start <= next || r.state().ended {
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

// recovery is what the run did again, and how it began.
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
