package run

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// openings are the runs that import graphs and make iterators now. Native code may crash the process at that
// point, before any element can be marked. The crash report therefore names them.
type openings struct {
	// Each opening, and the first element of a pooled stream, holds one of the places. An opening after a worker's death
	// holds all of them, and so does an element that is computed alone after two deaths.
	places *semaphore.Weighted
	// There are as many turns as cores. A worker that takes over all streams of a dead worker opens a few at a
	// time. If it opened all at once, every reader would wait until the end.
	turns chan struct{}
	mu    sync.Mutex
	runs  map[*run]struct{}
}

// allPlaces is the number of places, which is more than a worker has streams.
const allPlaces = 1 << 20

// enter waits for a place.
func (o *openings) enter() { _ = o.places.Acquire(context.Background(), 1) }

func (o *openings) leave() { o.places.Release(1) }

// takePlace takes a place for the first element of a pooled stream, which opens the stream's dataset.
func (r *run) takePlace() {
	r.stream.streams.openings.enter()
	r.hasPlace.Store(true)
}

// leavePlace leaves the place, if the run has one. A closing stream leaves it before it waits for a remainder: its dataset is
// built by then, and the stream of that remainder may wait for all places.
func (r *run) leavePlace() {
	if r.hasPlace.Swap(false) {
		r.stream.streams.openings.leave()
	}
}

// turnTimeout bounds the wait of a stream for its turn: a stream before it may wait for a slow disk.
const turnTimeout = time.Second

// turn waits until a stream may be opened. It returns the function to call after the opening.
func (o *openings) turn(ctx context.Context) (leave func()) {
	timer := time.NewTimer(turnTimeout)
	defer timer.Stop()
	select {
	case o.turns <- struct{}{}:
		return func() { <-o.turns }
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}

// pauseTimeout bounds how long an element that is computed alone keeps graphs from being opened.
const pauseTimeout = 10 * time.Second

// pause waits until no graph is opened, and keeps graphs from being opened until resume or pauseTimeout. It returns nil if
// an opening takes longer than turnTimeout.
func (o *openings) pause(ctx context.Context) (resume func()) {
	for until := time.Now().Add(turnTimeout); !o.places.TryAcquire(allPlaces); {
		if time.Now().After(until) || !clock.Sleep(ctx, exclusivePoll) {
			return nil
		}
	}
	unlock := sync.OnceFunc(func() { o.places.Release(allPlaces) })
	timer := time.AfterFunc(pauseTimeout, unlock)
	return func() {
		timer.Stop()
		unlock()
	}
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

// now returns the streams that are being opened.
func (o *openings) now() (streams []*pecanv1.OpeningStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := range o.runs {
		streams = append(streams, &pecanv1.OpeningStream{Id: r.stream.key.ID(), Lease: r.stream.leaseNow()})
	}
	return streams
}

// openGuarded opens the run's graphs. If workers have died of that, no other graph is opened and no suspicious
// element is produced meanwhile. The cause of another death is then known.
func (r *run) openGuarded() (*tf.Iterator, error) {
	w := r.stream.streams
	if !r.command.GetOpenExclusive() {
		w.openings.enter()
		defer w.openings.leave()
		leave := w.openings.turn(r.ctx)
		defer leave()
	} else {
		if !w.openExclusively(r.ctx) {
			return nil, r.ctx.Err()
		}
		defer w.exclusive.unlock()
		defer w.openings.places.Release(allPlaces)
		if r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		r.markOpening()
	}
	w.openings.add(r)
	defer w.openings.remove(r)
	return r.openOrRestore()
}

// exclusivePoll is the time between two attempts to get all places.
const exclusivePoll = 5 * time.Millisecond

// openExclusively waits until no suspicious element is produced and no graph is opened, and keeps both. It
// returns false if the context ended. It polls for the places instead of queueing for them: all later openings would
// wait, forever if the current one hangs.
func (ss *Streams) openExclusively(ctx context.Context) bool {
	for ss.exclusive.lock(ctx) {
		if ss.openings.places.TryAcquire(allPlaces) {
			return true
		}
		ss.exclusive.unlock()
		if !clock.Sleep(ctx, exclusivePoll) {
			return false
		}
	}
	return false
}

// markOpening waits until the dispatcher has recorded that the run is opened alone. If that fails, the run is
// opened all the same.
func (r *run) markOpening() {
	s := r.stream
	ctx, cancel := context.WithTimeout(r.ctx, markTimeout)
	defer cancel()
	_, err := s.streams.Dispatcher.API().MarkElements(ctx, &pecanv1.MarkElementsRequest{
		WorkerId: s.streams.Identity.ID(), Id: s.key.ID(), Lease: s.leaseNow(), Exclusive: true, Opening: true,
		Number: s.streams.marks.Add(1),
	})
	if err != nil && r.ctx.Err() == nil {
		s.log.Debug("a stream is opened without a crash mark", "error", err)
	}
}

// Opening returns the lock to hold while a graph is opened elsewhere in this process. If workers have died of
// opening a graph, no other graph is opened meanwhile.
func (ss *Streams) Opening() sync.Locker { return place{&ss.openings} }

// place is one of the places of openings.
type place struct{ *openings }

func (p place) Lock()   { p.enter() }
func (p place) Unlock() { p.leave() }

// BeingOpened returns the streams whose graphs are being opened now.
func (ss *Streams) BeingOpened() []*pecanv1.OpeningStream { return ss.openings.now() }
