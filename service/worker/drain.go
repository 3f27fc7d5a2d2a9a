package worker

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// drainLook is how often a worker that leaves looks whether its readers have everything.
const drainLook = 5 * time.Millisecond

// drain prepares a goodbye: no stream makes another element, readers get what there is, and what would cost much to run again is
// saved. So a stream begins elsewhere where it ends here. Each goes when it has come to rest and does not wait for the others: a
// trainer that reads streams in turn takes nothing of one before another has gone on. A stream that nobody may go on with runs to its
// end. It is over when all of that is done, after the drain timeout, or when there is no dispatcher to say goodbye to.
func (w *Worker) drain(ctx context.Context) {
	w.leaving.Store(true)
	w.trials.cancel(true)
	if !w.session.isUp() {
		return
	}
	// It shall not lease anything to this worker any more.
	w.session.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.heartbeat()}})
	begun, drained, told := time.Now(), false, 0
	for !drained && time.Since(begun) < w.config.DrainTimeout && w.session.isUp() {
		drained = true
		rests := 0
		for _, s := range w.held() {
			drained = s.drained() && drained
			if s.atRest() {
				rests++
			}
		}
		if rests > told {
			w.session.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.heartbeat()}})
		}
		told = rests
		if !drained && !pause(ctx, drainLook) {
			break
		}
	}
	// Elements that go out after the last heartbeat would be made again elsewhere for nothing.
	for _, s := range w.held() {
		s.hush()
	}
	w.tellFigures(w.ledger.jobs()...)
	w.log.Info("leaving", "drained", drained, "took", time.Since(begun).Round(time.Millisecond))
}

// drained tells whether a stream's run has come to rest and its reader, if it has one, has everything.
func (s *stream) drained() bool {
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
	empty := s.run.window.leave()
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
func (s *stream) atRest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resting
}

// hush sends nothing more.
func (s *stream) hush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.window.leave()
		s.run.window.silence()
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

// leave has nothing more made, and tells whether there is nothing left for a reader.
func (w *window) leave() (empty bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leaving {
		w.leaving = true
		w.room.Broadcast()
	}
	return w.reader == nil || len(w.entries) == 0
}

func (w *window) isLeaving() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leaving
}

// silence lets the reader go without a word: it looks for the stream where the dispatcher says.
func (w *window) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reader = nil
	w.setHungry(false)
}
