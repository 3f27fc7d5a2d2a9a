package run

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// markPeriod is how long what is marked at once takes to be made: a mark costs a round trip to the dispatcher.
	markPeriod = 10 * time.Millisecond
	// maxMarked elements at once.
	maxMarked = 1 << 14
	// markTimeout bounds the wait for a dispatcher that does not answer: then the run goes on without.
	markTimeout = 2 * time.Second
)

// crashGuard tells the dispatcher what a run is about to make, because the last worker that ran the stream died. If this one dies too, it
// is known where. It belongs to the goroutine of the run.
type crashGuard struct {
	run       *run
	suspected *pecanv1.CrashGuard
	// files that the stream reads, in order; nil where that is not known.
	files []string
	// reached is how many of them have been seen open, or are before one that was.
	reached int
	// below it everything is marked; size is for how many that was, at begun.
	below, size uint64
	begun       time.Time
	exclusive   bool
}

// begin is called before the element next is made, and gives how many may be made before it is called again.
func (w *crashGuard) begin(next uint64) int {
	if next < w.below {
		return int(w.below - next)
	}
	closing := w.run.order.GetClosing()
	if closing && w.size == 0 {
		w.awaitRemainders()
	}
	first, below := w.suspected.GetFirst(), w.suspected.GetBelow()
	if w.suspected.GetSerial() && !w.run.serial {
		// The steps work ahead all the same, so the one that kills may be begun earlier than it is asked for.
		first = 0
	}
	suspicious := first <= next && next < below
	// A closing stream waits for streams that may be made here: were it alone, they would wait for it.
	// Of a run that was stopped meanwhile nothing more is made.
	w.exclusive = suspicious && !closing && w.run.stream.streams.exclusive.lock(w.run.ctx)
	switch {
	case suspicious:
		w.size = 1
	case w.size == 0 || time.Since(w.begun) > markPeriod:
		w.size = max(1, w.size/2)
	default:
		w.size = min(2*w.size, maxMarked)
	}
	w.below = next + w.size
	if next < first && first < w.below {
		w.below = first
	}
	w.mark(next, w.below, w.openFiles())
	w.begun = time.Now()
	return int(w.below - next)
}

// awaitRemainders waits until all that a closing stream is made of is there. Marked before, it would be blamed for deaths while it waited.
func (w *crashGuard) awaitRemainders() {
	for {
		order, changed := w.run.stream.current()
		ready := uint32(0)
		for ready < uint32(order.GetPlan().GetNumStreams()) && remainderOf(order, ready).GetReady() {
			ready++
		}
		if ready == uint32(order.GetPlan().GetNumStreams()) {
			return
		}
		select {
		case <-w.run.ctx.Done():
			return
		case <-changed:
		}
	}
}

// end is called when what begin allowed, or some of it, was made.
func (w *crashGuard) end() {
	if w.exclusive {
		w.exclusive = false
		w.run.stream.streams.exclusive.unlock()
	}
}

// idle tells that nothing is asked for: the run waits for room. Steps that work ahead may go on.
func (w *crashGuard) idle() {
	next := w.run.index()
	w.below = next
	w.mark(next, next, nil)
}

// mark waits until the dispatcher has noted it. Where that cannot be, the run goes on as one that nobody watches.
func (w *crashGuard) mark(first, below uint64, files []string) {
	s := w.run.stream
	ctx, cancel := context.WithTimeout(w.run.ctx, markTimeout)
	defer cancel()
	_, err := s.streams.Dispatcher.API().MarkElements(ctx, &pecanv1.MarkElementsRequest{
		WorkerId: s.streams.Identity.ID(), Id: s.key.id(), Lease: s.leaseNow(), First: first, Below: below, Alone: w.exclusive, Files: files, ReadAhead: !w.run.serial,
		Number: s.streams.marks.Add(1),
	})
	if err != nil && w.run.ctx.Err() == nil {
		s.log.Debug("an element is made that the dispatcher was not told of", "element", first, "error", err)
	}
}

// openFiles are those of the stream's files that this process has open, and the one that comes next: an element may be the first of it.
// Other streams of the dataset read other files.
func (w *crashGuard) openFiles() []string {
	if len(w.files) == 0 {
		return nil
	}
	var open []string
	descriptors, _ := filepath.Glob("/proc/self/fd/*")
	for _, descriptor := range descriptors {
		name, err := os.Readlink(descriptor)
		if err != nil {
			continue
		}
		if i := slices.Index(w.files, name); i >= 0 {
			if !slices.Contains(open, name) {
				open = append(open, name)
			}
			w.reached = max(w.reached, i+1)
		}
	}
	next := w.reached
	if len(open) == 0 {
		// The last one may have been read to its end already.
		next = max(0, next-1)
	}
	for _, name := range w.files[next:] {
		open = append(open, name)
		// What is empty is passed over.
		if info, err := os.Stat(name); err != nil || info.Size() > 0 {
			break
		}
	}
	return open
}
