package clock

import (
	"sync"
	"time"
)

// Fake is a clock that moves only by Advance.
type Fake struct {
	mu      sync.Mutex
	now     time.Duration
	tickers []*fakeTicker
}

type fakeTicker struct {
	period, next time.Duration
	ticks        chan time.Time
	stopped      bool
}

// NewFake returns a clock that starts at zero.
func NewFake() *Fake { return &Fake{} }

// Now implements Clock.
func (f *Fake) Now() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// NewTicker implements Clock.
func (f *Fake) NewTicker(period time.Duration) (<-chan time.Time, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &fakeTicker{period: period, next: f.now + period, ticks: make(chan time.Time, 1)}
	f.tickers = append(f.tickers, t)
	return t.ticks, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		t.stopped = true
	}
}

// Advance moves the clock. Each ticker that is due ticks once.
func (f *Fake) Advance(by time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now += by
	for _, t := range f.tickers {
		if t.stopped || f.now < t.next {
			continue
		}
		t.next = f.now + t.period
		select {
		case t.ticks <- time.Unix(0, 0).Add(f.now):
		default:
		}
	}
}
