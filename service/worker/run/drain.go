package run

import (
	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Drain stops the production of all streams. With cut, streams that can begin at any index no longer wait for their
// readers. It returns whether all are drained, and how many are.
func (ss *Streams) Drain(cut bool) (drained bool, count int) {
	drained = true
	for _, s := range ss.held() {
		drained = s.drain(cut) && drained
		if s.isDrained() {
			count++
		}
	}
	return drained, count
}

// Mute stops sending. Elements that are sent after the last heartbeat would be recomputed elsewhere for nothing.
func (ss *Streams) Mute() {
	for _, s := range ss.held() {
		s.mute()
	}
}

// drain stops the production of the stream. It returns whether the run has ended its work and the reader, if
// there is one, has everything. With cut, a stream that can begin at any index is drained at once: the reader gets the rest
// from another worker.
func (s *Stream) drain(cut bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || s.command.GetClosing() {
		// The closing stream waits for the others. It runs again elsewhere from their remainders.
		return true
	}
	if s.read && !split.MayMove(s.command.GetPlan(), s.command.GetOptions()) {
		// The dispatcher takes the stream back after its end is reported and its reader has confirmed it.
		return false
	}
	empty := s.run.window.StopProduction()
	if cut && split.MovesAtOnce(s.command.GetPlan(), s.command.GetOptions()) {
		s.run.window.DropReader()
		s.drained = true
		return true
	}
	select {
	case <-s.run.productionEnded:
	case <-s.run.done:
	default:
		return false
	}
	s.drained = empty
	return empty
}

// isDrained reports whether the departing worker has nothing left to do for the stream.
func (s *Stream) isDrained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drained
}

// mute stops sending the stream's elements.
func (s *Stream) mute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.window.StopProduction()
		s.run.window.DropReader()
	}
}

// saveAndAwaitStop saves a run that produces no more elements for its successor. Then it waits until the run is
// stopped.
func (r *run) saveAndAwaitStop(it *tf.Iterator) {
	if r.saves() && r.index() != r.saver.index {
		r.saver.writing.Wait()
		r.save(it)
		r.saver.writing.Wait()
	}
	close(r.productionEnded)
	<-r.ctx.Done()
}
