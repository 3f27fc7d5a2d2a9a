package run

import (
	"context"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// openings are the runs whose graphs are being imported and whose iterators are being made. Native code may end the process there, before
// there is an element that could be marked, so its last words name them.
type openings struct {
	// order is held to read by each opening, and to write by one of which workers have died.
	order sync.RWMutex
	// turns are as many as there are cores. A worker that takes over all streams of a dead one opens them a few at a time: side by side
	// all would be there only at the end, and their readers wait for the first.
	turns chan struct{}
	mu    sync.Mutex
	runs  map[*run]struct{}
}

// openingPatience is how long a stream waits at most for its turn to be opened: one before it may wait for a slow disk.
const openingPatience = time.Second

// turn waits until a stream may be opened, and gives what to call when it is open.
func (o *openings) turn(ctx context.Context) (leave func()) {
	patience := time.NewTimer(openingPatience)
	defer patience.Stop()
	select {
	case o.turns <- struct{}{}:
		return func() { <-o.turns }
	case <-patience.C:
	case <-ctx.Done():
	}
	return func() {}
}

func (o *openings) add(r *run) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runs == nil {
		o.runs = map[*run]struct{}{}
	}
	o.runs[r] = struct{}{}
}

func (o *openings) remove(r *run) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.runs, r)
}

// now gives what is being opened.
func (o *openings) now() (streams []*pecanv1.OpeningStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := range o.runs {
		streams = append(streams, &pecanv1.OpeningStream{Id: r.stream.key.id(), Lease: r.stream.leaseNow()})
	}
	return streams
}

// openGuarded opens the run's graphs. Where workers have died of that, nothing else is opened meanwhile and no suspicious element made, so
// that it is known whose doing another death is.
func (r *run) openGuarded() (*tf.Iterator, error) {
	w := r.stream.streams
	if !r.order.GetOpenAlone() {
		w.openings.order.RLock()
		defer w.openings.order.RUnlock()
		leave := w.openings.turn(r.ctx)
		defer leave()
	} else {
		if !w.openExclusively(r.ctx) {
			return nil, r.ctx.Err()
		}
		defer w.exclusive.unlock()
		defer w.openings.order.Unlock()
		if r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		r.markOpening()
	}
	w.openings.add(r)
	defer w.openings.remove(r)
	return r.openOrRestore()
}

// exclusivePoll is how often it is looked whether nothing is being opened.
const exclusivePoll = 5 * time.Millisecond

// openExclusively waits until no suspicious element is made and nothing opened, and keeps it so. False: the context has ended. It does not wait
// for the second lock: all openings would stand in line behind it, for ever where one that is under way hangs.
func (w *Streams) openExclusively(ctx context.Context) bool {
	for w.exclusive.lock(ctx) {
		if w.openings.order.TryLock() {
			return true
		}
		w.exclusive.unlock()
		if !clock.Sleep(ctx, exclusivePoll) {
			return false
		}
	}
	return false
}

// markOpening waits until the dispatcher has noted that the run is opened alone; in vain, it is opened all the same.
func (r *run) markOpening() {
	s := r.stream
	ctx, cancel := context.WithTimeout(r.ctx, markTimeout)
	defer cancel()
	_, err := s.streams.Dispatcher.API().MarkElements(ctx, &pecanv1.MarkElementsRequest{
		WorkerId: s.streams.Identity.ID(), Id: s.key.id(), Lease: s.leaseNow(), Alone: true, Opening: true,
		Number: s.streams.marks.Add(1),
	})
	if err != nil && r.ctx.Err() == nil {
		s.log.Debug("a stream is opened of which the dispatcher was not told", "error", err)
	}
}

// Opening is held while a graph is opened elsewhere in this process: where workers have died of opening a graph, nothing else is opened
// meanwhile.
func (w *Streams) Opening() sync.Locker { return w.openings.order.RLocker() }

// BeingOpened gives the streams whose graphs are being opened now.
func (w *Streams) BeingOpened() []*pecanv1.OpeningStream { return w.openings.now() }
