package run

import (
	"log/slog"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// Stream is one leased stream. It stays until the dispatcher takes it back, even after its end: its last
// elements may be in flight, and its remainder may be requested.
type Stream struct {
	streams *Streams
	key     pecanv1.StreamKey
	log     *slog.Logger

	mu    sync.Mutex
	lease uint64
	// command is the newest StartStream.
	command *pecanv1.StartStream
	run     *run
	// remainder holds short batches for the closing stream; nil if the plan has none.
	remainder *window.Window
	stopped   bool
	// read is set when a reader has opened the stream, under any lease. drained is set when the worker departs
	// and the stream's readers have everything.
	read, drained bool
	// belowWindow is the error of a reader that wanted an element that is neither held nor repeatable; nil if
	// that has not happened.
	belowWindow *reason.Error
	// changed is closed and replaced whenever command changes.
	changed chan struct{}
}

func newStream(w *Streams, command *pecanv1.StartStream) *Stream {
	s := &Stream{streams: w, key: command.GetId().Key(), lease: command.GetLease(), command: command, changed: make(chan struct{})}
	s.log = w.Log.With("job", s.key.Job, "epoch", s.key.Epoch, "stream", s.key.Stream)
	return s
}

// keepsRemainder reports whether a short last batch of this stream belongs to a closing stream. The closing stream of a
// group keeps its own one back.
func keepsRemainder(command *pecanv1.StartStream) bool {
	_, keeps := command.GetPlan().ClosingOf(command.GetId().GetStream())
	return keeps
}

// update adopts a newer StartStream of the same stream. The run and its window stay if the run is healthy,
// because a newer lease does not change its elements.
func (s *Stream) update(command *pecanv1.StartStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || command.GetLease() < s.lease {
		return
	}
	again := command.GetLease() > s.lease
	s.lease, s.command = command.GetLease(), command
	close(s.changed)
	s.changed = make(chan struct{})
	if s.run.state().failed != nil || s.belowWindow != nil && again {
		s.belowWindow = nil
		s.startRun(reason.New(reason.StaleLease, "stream %d was leased again", s.key.Stream), s.fromDispatcher())
		return
	}
	s.run.window.SetPrefetch(command.GetPrefetch())
}

// startRun begins a run: the first one, or another one in place of a run whose readers get the reason. The caller holds mu.
func (s *Stream) startRun(why *reason.Error, at beginning) {
	s.quit(why)
	if keepsRemainder(s.command) {
		s.remainder = window.NewRemainder(&s.streams.windowBytes)
	}
	s.run = newRun(s, at)
	s.streams.Running.Go(s.run.main)
}

// quit ends the run and sends its readers the reason. The caller holds mu.
func (s *Stream) quit(why *reason.Error) {
	var readers []window.Reader
	if s.run != nil {
		readers = append(readers, s.run.stop())
	}
	if s.remainder != nil {
		readers = append(readers, s.remainder.Close())
	}
	for _, reader := range readers {
		if reader != nil {
			reader.Refuse(why)
		}
	}
}

// remainderWindow returns the window for r's short batches. It is nil if there are none or if r is no longer the
// stream's run.
func (s *Stream) remainderWindow(r *run) *window.Window {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != r || s.stopped {
		return nil
	}
	return s.remainder
}

func (s *Stream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.startRun(nil, s.fromDispatcher())
	}
}

// current returns the newest StartStream and a channel that is closed when there is a newer one.
func (s *Stream) current() (*pecanv1.StartStream, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.command, s.changed
}

// stop ends the stream for good and notifies its readers.
func (s *Stream) stop(why *reason.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	close(s.changed)
	s.changed = make(chan struct{})
	s.quit(why)
}

// closed returns a channel that is closed when a stopped stream has released everything.
func (s *Stream) closed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		nothing := make(chan struct{})
		close(nothing)
		return nothing
	}
	return s.run.done
}

func (s *Stream) leaseNow() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

func (s *Stream) leaseAndChange() (uint64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease, s.changed
}

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
