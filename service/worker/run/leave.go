package run

import (
	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Leave has no stream make another element, and tells whether nothing of any is left to be done, and of how many.
func (w *Streams) Leave() (drained bool, rests int) {
	drained = true
	for _, s := range w.held() {
		drained = s.drained() && drained
		if s.atRest() {
			rests++
		}
	}
	return drained, rests
}

// Hush has nothing more sent: elements that go out after the last heartbeat would be made again elsewhere for nothing.
func (w *Streams) Hush() {
	for _, s := range w.held() {
		s.hush()
	}
}

// drained tells whether a stream's run has come to rest and its reader, if it has one, has everything.
func (s *Stream) drained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || s.order.GetClosing() {
		// The closing stream waits for the others, and is run again from what they kept back.
		return true
	}
	if s.read && !split.MayMove(s.order.GetPlan(), s.order.GetOptions()) {
		// The dispatcher takes it back when it has ended and its reader has said so.
		return false
	}
	empty := s.run.window.Leave()
	select {
	case <-s.run.resting:
	case <-s.run.done:
	default:
		return false
	}
	s.resting = empty
	return empty
}

// atRest tells whether the worker that leaves has nothing more to do for the stream.
func (s *Stream) atRest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resting
}

// hush sends nothing more.
func (s *Stream) hush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.window.Leave()
		s.run.window.Silence()
	}
}

// rest waits for the end of a run that makes nothing more, and saves it for its successor first.
func (r *run) rest(it *tf.Iterator) {
	if r.saves() && r.index() != r.saver.index {
		r.saver.writing.Wait()
		r.save(it)
		r.saver.writing.Wait()
	}
	close(r.resting)
	<-r.ctx.Done()
}
