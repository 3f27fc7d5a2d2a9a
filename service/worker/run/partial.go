package run

import (
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
)

// These are the intervals at which the elements of a waiting fill are polled.
const (
	firstPoll = linger
	lastPoll  = 50 * time.Millisecond
)

// handover delivers the elements of a fill while the fill waits for its next element. Without it, a ready element
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

// begin is called before a fill; flush appends a copy of elements [from, to).
func (h *handover) begin(cut func(from, to int)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flush, h.taken, h.pause, h.active = cut, 0, firstPoll, true
	if h.timer == nil {
		h.timer = time.AfterFunc(h.pause, h.poll)
	} else {
		h.timer.Reset(h.pause)
	}
}

// end is called after a fill. It returns how many elements were handed over.
func (h *handover) end() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active = false
	h.timer.Stop()
	return h.taken
}

func (h *handover) poll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.active {
		return
	}
	if count := h.it.Progress(); count > h.taken {
		h.flush(h.taken, count)
		h.taken, h.pause = count, firstPoll
	} else {
		h.pause = min(2*h.pause, lastPoll)
	}
	h.timer.Reset(h.pause)
}
