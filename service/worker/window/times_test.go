package window

import (
	"sync/atomic"
	"testing"
	"time"
)

// testReader is a reader that acknowledges by hand.
type testReader struct{ Reader }

func (testReader) Wake() {}

func (testReader) Asked() uint64 { return 1 }

func TestTheTimesOfARunAreThoseInWhichItComputesAndWaits(t *testing.T) {
	const size = 1000
	var all atomic.Int64
	limit, streams := func() int64 { return 3 * (size + entryOverhead) }, func() int64 { return 1 }
	w := New(&all, nil, Start{})
	reader := testReader{}
	w.Attach(reader, 0)
	computed, waited := Times()
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		for index := uint64(0); w.WaitRoom(limit, streams, nil); index++ {
			time.Sleep(20 * time.Millisecond)
			w.Append(NewEntry(index, 1, size, nil))
		}
	}()
	// The window fills, and the run waits. Then the reader takes an element each 50 ms.
	time.Sleep(200 * time.Millisecond)
	begun := time.Now()
	computedBefore, waitedBefore := Times()
	for range 20 {
		time.Sleep(50 * time.Millisecond)
		if taken := w.Take(reader, true); taken.Entry != nil {
			taken.Entry.Release()
		}
		w.mu.Lock()
		next := w.cursor
		w.mu.Unlock()
		w.Acknowledge(reader, next)
	}
	elapsed := time.Since(begun)
	computedAfter, waitedAfter := Times()
	w.Close()
	<-produced
	busy, rest := computedAfter-computedBefore, waitedAfter-waitedBefore
	if sum := busy + rest; sum < elapsed*9/10 || sum > elapsed*11/10 {
		t.Errorf("the run computed for %v and waited for %v of %v", busy, rest, elapsed)
	}
	if share := busy.Seconds() / elapsed.Seconds(); share < 0.3 || share > 0.6 {
		t.Errorf("the run computed in %.0f %% of the time, want about 40 %%", 100*share)
	}
	if computedBefore <= computed || waitedBefore <= waited {
		t.Errorf("the totals are %v and %v, and were %v and %v", computedBefore, waitedBefore, computed, waited)
	}
	// A run that is over counts no more.
	computed, waited = Times()
	time.Sleep(50 * time.Millisecond)
	if c, b := Times(); c != computed || b != waited {
		t.Errorf("after the end, %v and %v were added", c-computed, b-waited)
	}
}
