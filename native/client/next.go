package client

import (
	"time"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/proto/reason"
)

// NextElement dequeues one element and waits for it for at most wait. With Ready, it returns elements of Count 1, whose tensors
// have the element's own shape. With Failed, it returns an error after which the caller may call again. The element failed
// and was skipped, or an outage (the dispatcher is away, or no worker is registered or reachable) may have ended meanwhile.
// With Broken, it returns the error that ended the iteration.
func (it *Iteration) NextElement(wait time.Duration) (*element.Elements, Status, error) {
	return it.next(wait, 1, false)
}

// NextBlock dequeues up to max elements of one shape. Each tensor has a leading dimension of their number.
// Elements that arrived in one frame are not copied.
func (it *Iteration) NextBlock(max int, wait time.Duration) (*element.Elements, Status, error) {
	if max < 1 {
		return nil, Failed, reason.New(reason.BadArgument, "next block of %d elements: ask for at least one", max)
	}
	return it.next(wait, max, true)
}

func (it *Iteration) next(wait time.Duration, max int, lead bool) (*element.Elements, Status, error) {
	if err := it.job.session.link.CheckFork(); err != nil {
		return nil, Broken, err
	}
	if it.broken != nil {
		return nil, Broken, it.broken
	}
	// Most calls find elements, so the fast path has no timer.
	select {
	case it.dequeuing <- struct{}{}:
		elements, status, err := it.tryOnce(max, lead)
		it.took(elements, status, 0)
		if status != NotYet || wait <= 0 {
			return elements, status, err
		}
	default:
	}
	return it.await(wait, max, lead)
}

// took measures the elements that a call returned after it waited.
func (it *Iteration) took(elements *element.Elements, status Status, waited time.Duration) {
	switch status {
	case Ready:
		it.job.pace.Took(time.Now(), elements.Count, waited, it.queued)
	case End, Broken:
		it.job.pace.Interrupt()
	}
}

// queued returns the number of elements that are ready.
func (it *Iteration) queued() int {
	if e := it.epoch(); e != nil {
		return e.Queued()
	}
	return 0
}

// tryOnce dequeues elements that are ready. It releases the lock of dequeuing.
func (it *Iteration) tryOnce(max int, lead bool) (*element.Elements, Status, error) {
	defer func() { <-it.dequeuing }()
	elements, status, _, err := it.try(max, lead)
	return elements, status, err
}

// await dequeues elements, and waits for them for at most wait. After that time it returns NotYet, or the error of an outage
// that has lasted too long.
func (it *Iteration) await(wait time.Duration, max int, lead bool) (*element.Elements, Status, error) {
	began := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case it.dequeuing <- struct{}{}:
		defer func() { <-it.dequeuing }()
	case <-timer.C:
		return nil, NotYet, nil
	}
	for {
		elements, status, e, err := it.try(max, lead)
		if status != NotYet {
			waited := time.Since(began)
			it.waited(waited, false)
			it.took(elements, status, waited)
			return elements, status, err
		}
		e.SetStarved(true)
		select {
		case <-e.Notify:
		case <-it.closed:
		case <-timer.C:
			waited := time.Since(began)
			it.waited(waited, true)
			it.job.pace.Waited(waited)
			if err := e.Outage(time.Now(), it.options.Timeout); err != nil {
				return nil, Failed, err
			}
			return nil, NotYet, nil
		}
	}
}

// try dequeues what is ready. With NotYet it returns the epoch to wait for.
func (it *Iteration) try(max int, lead bool) (*element.Elements, Status, *epoch.Epoch, error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	for {
		switch {
		case it.isShut:
			return nil, Broken, nil, reason.New(reason.Closed, "the iteration is closed")
		case it.ended && it.endErr != nil:
			return nil, Broken, nil, it.endErr
		case it.ended:
			if it.options.log != nil && it.pass != nil {
				it.options.log.Ended(it.pass)
			}
			return nil, End, nil, nil
		}
		e := it.current
		n := it.beforeLast(max)
		if n == 0 {
			last := e.LookAhead()
			if it.lastWaits(last) {
				return nil, NotYet, e, nil
			}
			if err := it.tooMany(2); last == epoch.MoreFollow && err != nil {
				it.finish(err)
				return nil, Broken, nil, err
			}
			n = 1
		}
		elements, found, err := e.Dequeue(n, lead)
		switch found {
		case epoch.Ready:
			if it.options.log != nil {
				it.options.log.Delivered(it.pass, elements, false)
			}
			it.count(elements)
			if err := it.tooMany(0); err != nil {
				elements.Release()
				it.finish(err)
				return nil, Broken, nil, err
			}
			return elements, Ready, nil, nil
		case epoch.ElementFailed:
			if it.options.log != nil {
				it.options.log.Delivered(it.pass, elements, true)
			}
			it.stats.Failed++
			return nil, Failed, nil, err
		case epoch.Broken:
			it.finish(err)
			return nil, Broken, nil, err
		case epoch.Nothing:
			return nil, NotYet, e, nil
		case epoch.End:
			it.advance()
		}
	}
}

func (it *Iteration) count(elements *element.Elements) {
	it.elements += uint64(elements.Count)
	it.stats.Elements += uint64(elements.Count)
	for i := range elements.Tensors {
		it.stats.Bytes += uint64(len(elements.Tensors[i].Data) + len(elements.Tensors[i].Lengths))
	}
}

// Status is the result of a Next.
type Status int

// NotYet means that nothing was ready in time; call again. Ready means that elements were returned. End means that the iteration
// has ended. Failed means that an error was returned. The caller may call again, and the iteration continues after the
// failed element or, without one, where it was. Broken means that an error ended the iteration before its end.
const (
	NotYet Status = iota
	Ready
	End
	Failed
	Broken
)

// String returns the status's name.
func (s Status) String() string {
	return [...]string{"not yet", "ready", "end", "failed", "broken"}[s]
}
