package run

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// openings are the runs that import graphs and make iterators now. Native code may crash the process at that
// point, before any element can be marked. The crash report therefore names them.
type openings struct {
	// lock is the opening lock. Each opening shares it, and so does the first element of a pooled stream. An opening after a
	// worker's death holds it exclusively, and so does an element that is computed alone after two deaths.
	lock *semaphore.Weighted
	// limit has room for as many openings as there are cores. A worker that takes over all streams of a dead worker opens a
	// few at a time. If it opened all at once, every reader would wait until the end.
	limit chan struct{}
	mu    sync.Mutex
	runs  map[*run]struct{}
}

// exclusively is the weight that holds the opening lock exclusively. It is more than a worker has streams.
const exclusively = 1 << 20

// acquire waits until nobody holds the opening lock exclusively or queues for it, and holds it with others. It fails if the context
// ended.
func (o *openings) acquire(ctx context.Context) error { return o.lock.Acquire(ctx, 1) }

func (o *openings) release() { o.lock.Release(1) }

// acquireOpeningLock acquires the opening lock for the first element of a pooled stream, which opens the stream's dataset. It
// fails if the run was stopped. A crash report does not name the stream as being opened, because the element may be the
// cause. The next run has an iterator of its own, which tells these apart.
func (r *run) acquireOpeningLock() error {
	err := r.stream.streams.openings.acquire(r.ctx)
	if err == nil {
		r.holdsOpeningLock.Store(true)
	}
	return err
}

// releaseOpeningLock releases the opening lock if the run holds it. A closing stream releases it before it waits for a
// remainder. Its dataset is built by then, and the stream of that remainder may wait for the exclusive lock.
func (r *run) releaseOpeningLock() {
	if r.holdsOpeningLock.Swap(false) {
		r.stream.streams.openings.release()
	}
}

// limitTimeout bounds the wait of an opening for others: one of them may wait for a slow disk.
const limitTimeout = time.Second

// awaitLimit waits until fewer openings run than there are cores. It returns the function to call after the opening.
func (o *openings) awaitLimit(ctx context.Context) (leave func()) {
	timer := time.NewTimer(limitTimeout)
	defer timer.Stop()
	select {
	case o.limit <- struct{}{}:
		return func() { <-o.limit }
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}

// pauseTimeout bounds how long an element that is computed alone keeps graphs from being opened. pausePoll is the time
// between two attempts to do so.
const (
	pauseTimeout = 10 * time.Second
	pausePoll    = 5 * time.Millisecond
)

// pause waits until no graph is opened, and keeps graphs from being opened until resume or pauseTimeout. It returns nil if
// an opening takes longer than limitTimeout.
func (o *openings) pause(ctx context.Context) (resume func()) {
	for until := time.Now().Add(limitTimeout); !o.lock.TryAcquire(exclusively); {
		if time.Now().After(until) || !clock.Sleep(ctx, pausePoll) {
			return nil
		}
	}
	unlock := sync.OnceFunc(func() { o.lock.Release(exclusively) })
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

// An exclusive opening queues for the opening lock for firstPeriod. Then others may open graphs for the same time. Each
// next period is twice as long, up to lastPeriod.
const (
	firstPeriod = 5 * time.Millisecond
	lastPeriod  = time.Minute
)

// openExclusively waits until no suspicious element is produced and no graph is opened, and keeps both. It returns
// false if the context ended. While it queues, later openings wait behind it, because the first elements of many
// streams overlap. It leaves the queue between these periods, because the current opening may hang.
func (ss *Streams) openExclusively(ctx context.Context) bool {
	for period := firstPeriod; ss.exclusive.Acquire(ctx, 1) == nil; period = min(2*period, lastPeriod) {
		queueing, leave := context.WithTimeout(ctx, period)
		err := ss.openings.lock.Acquire(queueing, exclusively)
		if leave(); err == nil {
			return true
		}
		ss.exclusive.Release(1)
		if !clock.Sleep(ctx, period) {
			return false
		}
	}
	return false
}

// markOpening waits until the dispatcher has recorded that the run is opened alone. If that fails, the run is
// opened without a crash mark.
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

// AcquireOpening acquires the opening lock while a graph is opened elsewhere in this process, until release is called. If workers
// have died of opening a graph, no other graph is opened meanwhile. It fails if the context ended.
func (ss *Streams) AcquireOpening(ctx context.Context) (release func(), err error) {
	return ss.openings.release, ss.openings.acquire(ctx)
}

// BeingOpened returns the streams whose graphs are being opened now.
func (ss *Streams) BeingOpened() []*pecanv1.OpeningStream { return ss.openings.now() }
