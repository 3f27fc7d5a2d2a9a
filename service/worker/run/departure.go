package run

import (
	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Leave has no stream make another element, and tells whether nothing of any is left to be done, and of how many.
func (w *Streams) Leave() (drained bool, rests int) {
	drained = true
	for _, s := range w.held() {
		drained = s.drain() && drained
		if s.isDrained() {
			rests++
		}
	}
	return drained, rests
}

// Mute has nothing more sent: elements that go out after the last heartbeat would be made again elsewhere for nothing.
func (w *Streams) Mute() {
	for _, s := range w.held() {
		s.mute()
	}
}

// drain tells whether a stream's run has come to rest and its reader, if it has one, has everything.
func (s *Stream) drain() bool {
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
	case <-s.run.departed:
	case <-s.run.done:
	default:
		return false
	}
	s.drained = empty
	return empty
}

// isDrained tells whether the worker that leaves has nothing more to do for the stream.
func (s *Stream) isDrained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drained
}

// mute sends nothing more.
func (s *Stream) mute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.window.Leave()
		s.run.window.DropReader()
	}
}

// awaitDeparture waits for the end of a run that makes nothing more, and saves it for its successor first.
func (r *run) awaitDeparture(it *tf.Iterator) {
	if r.saves() && r.index() != r.saver.index {
		r.saver.writing.Wait()
		r.save(it)
		r.saver.writing.Wait()
	}
	close(r.departed)
	<-r.ctx.Done()
}
