package tf

// #include "tensorflow.h"
import "C"

import (
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// Loan is what a source lends to its PecanPull op: an iterator from which the op fetches the next elements by itself. A fetch through
// Go takes a thread away from Go's scheduler, which then looks every 20 µs whether it returns. Its methods are safe for concurrent
// use.
type Loan struct {
	c *C.pecan_loan

	mu sync.Mutex
	// it is the iterator that is lent; nil without one.
	it *Iterator
}

func newLoan() *Loan {
	l := &Loan{c: C.pecan_new_loan()}
	runtime.AddCleanup(l, func(c *C.pecan_loan) { C.pecan_release_loan(c) }, l.c)
	return l
}

// retain returns the C side, which pecan_release_loan releases.
func (l *Loan) retain() *C.pecan_loan {
	C.pecan_retain_loan(l.c)
	return l.c
}

// lent is what an op has fetched from an iterator, and what ended its fetches; nil if nothing did.
type lent struct {
	elements [][]*Tensor
	took     time.Duration
	err      error
}

// Lend lends the iterator until it has given that many elements or bytes, ends, or fails. Every other fetch waits until Reclaim.
// It does nothing if the iterator is closed or cancelled, or if something is lent already.
func (it *Iterator) Lend(l *Loan, elements int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.it != nil {
		return
	}
	it.fetching.Lock()
	it.calls.RLock()
	if it.closed || it.cancelled.Load() {
		it.calls.RUnlock()
		it.fetching.Unlock()
		return
	}
	it.loan.Store(l)
	l.it = it
	C.pecan_lend(l.c, it.c, C.int64_t(elements), C.size_t(bytes), it.status.c)
}

// Recall ends a loan, after the fetch in progress.
func (l *Loan) Recall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recall()
}

func (l *Loan) recall() {
	it := l.it
	if it == nil {
		return
	}
	var out *C.pecan_tensor
	var took C.int64_t
	var code C.TF_Code
	fetched := int(C.pecan_recall(l.c, &out, &took, &code))
	tensors := unsafe.Slice(out, fetched*it.components)
	for i := range fetched {
		it.lent.elements = append(it.lent.elements, adoptAll(tensors[i*it.components:][:it.components]))
	}
	it.lent.took += time.Duration(took)
	it.lent.err = it.result(code)
	it.given.Add(uint64(fetched))
	l.it = nil
	it.loan.Store(nil)
	it.calls.RUnlock()
	it.fetching.Unlock()
}

// Reclaim ends what Lend began. It returns the elements that the op has fetched, for how long it fetched, and the error that ended
// this, as Next would. The caller releases the elements, which the op has given to its graph.
func (it *Iterator) Reclaim() (elements [][]*Tensor, took time.Duration, err error) {
	if l := it.loan.Load(); l != nil {
		l.Recall()
	}
	it.fetching.Lock()
	defer it.fetching.Unlock()
	got := it.lent
	it.lent = lent{}
	return got.elements, got.took, got.err
}
