package dispatcher

import (
	"context"
	"runtime/debug"
	"sync"
)

// backgroundWork computes an input of the core in the background. Work with the same lock runs one after the other.
type backgroundWork struct {
	one *sync.Mutex
	// compute returns the input. If it panics, the input is afterPanic, and failed and about are logged.
	compute    func() any
	afterPanic any
	failed     string
	about      []any
}

// inBackground does some work and passes its input to the core. The store must not wait for it. If the dispatcher
// stops meanwhile, the next one asks again.
func (d *Dispatcher) inBackground(w backgroundWork) {
	d.planning.Add(1)
	go func() {
		defer d.planning.Done()
		input := d.compute(w)
		if d.waitForDisk(context.Background()) {
			d.decide(input)
		}
	}()
}

// compute does some work, one at a time. The dispatcher need not end after a panic: orders and workers stay as they are.
func (d *Dispatcher) compute(w backgroundWork) (input any) {
	w.one.Lock()
	defer w.one.Unlock()
	defer func() {
		if p := recover(); p != nil {
			d.deps.Log.Error(w.failed, append(w.about, "panic", p, "stack", string(debug.Stack()))...)
			input = w.afterPanic
		}
	}()
	return w.compute()
}
