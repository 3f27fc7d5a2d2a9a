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
	// markPeriod is the time that the elements of one crash mark should take to produce. A mark costs a round
	// trip to the dispatcher.
	markPeriod = 10 * time.Millisecond
	// maxMarked bounds the elements of one crash mark.
	maxMarked = 1 << 14
	// markTimeout bounds the wait for a dispatcher that does not answer. After it the run continues without a
	// mark.
	markTimeout = 2 * time.Second
)

// crashGuard sends crash marks: it reports to the dispatcher which elements a run is about to produce. It is
// used when the last worker of the stream died. If this worker dies too, the dispatcher knows at which element.
// A crashGuard belongs to the goroutine of the run.
type crashGuard struct {
	run       *run
	suspected *pecanv1.CrashGuard
	// files are the files that the stream reads, in order; nil if they are not known.
	files []string
	// reached counts the files that were seen open, and those before them.
	reached int
	// All elements below this index are marked. size is the number of elements in the last mark, begun the time
	// of it.
	below, size uint64
	begun       time.Time
	exclusive   bool
}

// begin is called before element next is produced. It returns how many elements may be produced before its next
// call.
func (w *crashGuard) begin(next uint64) int {
	if next < w.below {
		return int(w.below - next)
	}
	closing := w.run.command.GetClosing()
	if closing && w.size == 0 {
		w.awaitRemainders()
	}
	first, below := w.suspected.GetFirst(), w.suspected.GetBelow()
	if w.suspected.GetSerial() && !w.run.serial {
		// The steps read ahead in spite of serial, so the crashing element may begin earlier than it is
		// requested.
		first = 0
	}
	isSuspected := first <= next && next < below
	// A closing stream waits for other streams of this worker. With the exclusive lock, they would wait for it.
	//
	// A run that was stopped produces nothing, whether or not it has the lock.
	w.exclusive = isSuspected && !closing && w.run.stream.streams.exclusive.lock(w.run.ctx)
	switch {
	case isSuspected:
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

// awaitRemainders waits until all remainders of a closing stream are available. A mark before that would blame
// the stream for deaths during its wait.
func (w *crashGuard) awaitRemainders() {
	for {
		command, changed := w.run.stream.current()
		ready := uint32(0)
		for ready < uint32(command.GetPlan().GetNumStreams()) && remainderOf(command, ready).GetReady() {
			ready++
		}
		if ready == uint32(command.GetPlan().GetNumStreams()) {
			return
		}
		select {
		case <-w.run.ctx.Done():
			return
		case <-changed:
		}
	}
}

// end is called after the elements that begin allowed, or some of them, were produced.
func (w *crashGuard) end() {
	if w.exclusive {
		w.exclusive = false
		w.run.stream.streams.exclusive.unlock()
	}
}

// idle marks that no element is requested: the run waits for room. Steps that read ahead may continue.
func (w *crashGuard) idle() {
	next := w.run.index()
	w.below = next
	w.mark(next, next, nil)
}

// mark waits until the dispatcher has recorded the mark. If that fails, the run continues without a crash guard.
func (w *crashGuard) mark(first, below uint64, files []string) {
	s := w.run.stream
	ctx, cancel := context.WithTimeout(w.run.ctx, markTimeout)
	defer cancel()
	_, err := s.streams.Dispatcher.API().MarkElements(ctx, &pecanv1.MarkElementsRequest{
		WorkerId: s.streams.Identity.ID(), Id: s.key.id(), Lease: s.leaseNow(), First: first, Below: below, Exclusive: w.exclusive, Files: files, ReadAhead: !w.run.serial,
		Number: s.streams.marks.Add(1),
	})
	if err != nil && w.run.ctx.Err() == nil {
		s.log.Debug("an element is produced without a crash mark", "element", first, "error", err)
	}
}

// openFiles returns the stream's files that this process has open, and the file after them, because an element
// may be the first of that file. Other streams of the dataset read other files.
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
		// The last file may have been read to its end already.
		next = max(0, next-1)
	}
	for _, name := range w.files[next:] {
		open = append(open, name)
		// Empty files are skipped.
		if info, err := os.Stat(name); err != nil || info.Size() > 0 {
			break
		}
	}
	return open
}
