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
	// markTimeout bounds the wait for a dispatcher that does not answer. After this time, the run continues without a mark.
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
	// reached is the number of files up to the last one that was seen open.
	reached int
	// All elements below this index are marked. size is the number of elements in the last mark, and begun is the
	// time of that mark.
	below, size uint64
	begun       time.Time
	// exclusive is set if the run holds the lock of suspicious elements.
	exclusive bool
	// others releases the opening lock; nil if the run does not hold it. crowded is set if an opening takes so long that
	// the run no longer asks for the lock.
	others  func()
	crowded bool
}

// begin is called before element next is produced. It returns how many elements may be produced before its next
// call.
func (g *crashGuard) begin(next uint64) int {
	if next < g.below {
		return int(g.below - next)
	}
	closing := g.run.command.GetClosing()
	if closing && g.size == 0 {
		g.awaitRemainders()
	}
	first, below := g.suspected.GetFirst(), g.suspected.GetBelow()
	if g.suspected.GetSerial() && !g.run.serial {
		// The steps read ahead in spite of serial, so the crashing element may begin earlier than it is
		// requested.
		first = 0
	}
	isSuspected := first <= next && next < below
	// A closing stream waits for other streams of this worker. With the exclusive lock, they would wait for it.
	//
	// A run that was stopped produces nothing, whether or not it has the lock.
	g.exclusive = isSuspected && !closing && g.run.stream.streams.exclusive.Acquire(g.run.ctx, 1) == nil
	if g.exclusive && !g.crowded {
		// If a graph that is opened meanwhile ended the process, the element would be blamed for it.
		g.others = g.run.stream.streams.openings.pause(g.run.ctx)
		g.crowded = g.others == nil
	}
	switch {
	case isSuspected:
		g.size = 1
	case g.size == 0 || time.Since(g.begun) > markPeriod:
		g.size = max(1, g.size/2)
	default:
		g.size = min(2*g.size, maxMarked)
	}
	g.below = next + g.size
	if next < first && first < g.below {
		g.below = first
	}
	g.mark(next, g.below, g.openFiles())
	g.begun = time.Now()
	return int(g.below - next)
}

// awaitRemainders waits until all remainders of a closing stream are available. A mark before that would blame
// the stream for deaths during its wait.
func (g *crashGuard) awaitRemainders() {
	for {
		command, changed := g.run.stream.current()
		waits := func(source *pecanv1.RemainderSource) bool { return !source.GetReady() }
		if !slices.ContainsFunc(command.GetRemainders(), waits) {
			return
		}
		select {
		case <-g.run.ctx.Done():
			return
		case <-changed:
		}
	}
}

// end is called after the elements that begin allowed, or some of them, were produced.
func (g *crashGuard) end() {
	if g.others != nil {
		g.others()
		g.others = nil
	}
	if g.exclusive {
		g.exclusive = false
		g.run.stream.streams.exclusive.Release(1)
	}
}

// idle marks that no element is requested: the run waits for room. Steps that read ahead may continue.
func (g *crashGuard) idle() {
	next := g.run.index()
	g.below = next
	g.mark(next, next, nil)
}

// mark waits until the dispatcher has recorded the mark. If that fails, the run continues without a crash guard.
func (g *crashGuard) mark(first, below uint64, files []string) {
	s := g.run.stream
	ctx, cancel := context.WithTimeout(g.run.ctx, markTimeout)
	defer cancel()
	_, err := s.streams.Dispatcher.API().MarkElements(ctx, &pecanv1.MarkElementsRequest{
		WorkerId: s.streams.Identity.ID(), Id: s.key.ID(), Lease: s.leaseNow(), First: first, Below: below, Exclusive: g.exclusive, Files: files, ReadAhead: !g.run.serial,
		Number: s.streams.marks.Add(1),
	})
	if err != nil && g.run.ctx.Err() == nil {
		s.log.Debug("an element is produced without a crash mark", "element", first, "error", err)
	}
}

// openFiles returns the stream's files that this process has open, and the file after them, because an element
// may be the first of that file. Other streams of the dataset read other files.
func (g *crashGuard) openFiles() []string {
	if len(g.files) == 0 {
		return nil
	}
	var open []string
	descriptors, _ := filepath.Glob("/proc/self/fd/*")
	for _, descriptor := range descriptors {
		name, err := os.Readlink(descriptor)
		if err != nil {
			continue
		}
		if i := slices.Index(g.files, name); i >= 0 {
			if !slices.Contains(open, name) {
				open = append(open, name)
			}
			g.reached = max(g.reached, i+1)
		}
	}
	next := g.reached
	if len(open) == 0 {
		// The last file may have been read to its end already.
		next = max(0, next-1)
	}
	for _, name := range g.files[next:] {
		open = append(open, name)
		// Empty files are skipped.
		if info, err := os.Stat(name); err != nil || info.Size() > 0 {
			break
		}
	}
	return open
}
