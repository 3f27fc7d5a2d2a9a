package run

import (
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
)

// These are the intervals at which the rows of a waiting fill are polled.
const (
	firstPoll = linger
	lastPoll  = 50 * time.Millisecond
)

// handover delivers the rows of a fill while the fill waits for its next element. Without it, a ready element
// would wait for as long as TensorFlow takes for the next one.
type handover struct {
	it *tf.Iterator

	mu     sync.Mutex
	flush  func(from, to int)
	taken  int
	pause  time.Duration
	timer  *time.Timer
	active bool
}

// begin is called before a fill; flush appends a copy of rows [from, to).
func (f *handover) begin(cut func(from, to int)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flush, f.taken, f.pause, f.active = cut, 0, firstPoll, true
	if f.timer == nil {
		f.timer = time.AfterFunc(f.pause, f.poll)
	} else {
		f.timer.Reset(f.pause)
	}
}

// end is called after a fill. It returns how many rows were handed over.
func (f *handover) end() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = false
	f.timer.Stop()
	return f.taken
}

func (f *handover) poll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.active {
		return
	}
	if rows := f.it.Progress(); rows > f.taken {
		f.flush(f.taken, rows)
		f.taken, f.pause = rows, firstPoll
	} else {
		f.pause = min(2*f.pause, lastPoll)
	}
	f.timer.Reset(f.pause)
}
