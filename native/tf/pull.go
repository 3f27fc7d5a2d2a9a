package tf

// #include "tensorflow.h"
import "C"

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Source produces the batches that a graph's PecanPull op requests. Pull may block, and must return when the
// stream is cancelled, because TensorFlow cannot end it. io.EOF is the end. The op takes over the tensors.
type Source interface {
	Pull() ([]*Tensor, error)
}

// Lender is a Source that may lend an iterator to the op. The op calls PullOrLend in place of Pull.
type Lender interface {
	Source
	PullOrLend(*Loan) ([]*Tensor, error)
}

// registered is a source, and the loan of its op; nil if the source lends nothing.
type registered struct {
	source Source
	loan   *Loan
}

func (r *registered) pull() ([]*Tensor, error) {
	if r.loan != nil {
		return r.source.(Lender).PullOrLend(r.loan)
	}
	return r.source.Pull()
}

// sources maps the handle in a graph to its source. It is global because TensorFlow calls the op that looks
// it up, and the op knows only the handle.
var sources struct {
	sync.Map
	last atomic.Int64
}

// RegisterSource returns the handle by which a graph's PecanPull op finds the source.
func RegisterSource(s Source) int64 {
	handle := sources.last.Add(1)
	r := &registered{source: s}
	if _, lends := s.(Lender); lends {
		r.loan = newLoan()
	}
	sources.Store(handle, r)
	return handle
}

// RemoveSource removes a handle. A graph that still uses it gets an error.
func RemoveSource(handle int64) { sources.Delete(handle) }

//export pecanLoanOf
func pecanLoanOf(handle C.int64_t) *C.pecan_loan {
	if source, ok := sources.Load(int64(handle)); ok && source.(*registered).loan != nil {
		return source.(*registered).loan.retain()
	}
	return nil
}

//export pecanPull
func pecanPull(handle C.int64_t, out **C.TF_Tensor, outputs C.int, s *C.TF_Status) {
	source, ok := sources.Load(int64(handle))
	if !ok {
		setStatus(s, CodeInvalidArgument, "PecanPull has no source here: use it only in graphs that Pecan makes")
		return
	}
	tensors, err := source.(*registered).pull()
	if err != nil {
		setStatus(s, codeOf(err), err.Error())
		return
	}
	if len(tensors) != int(outputs) {
		ReleaseAll(tensors)
		setStatus(s, CodeInternal, "the source gave another number of components")
		return
	}
	slots := unsafe.Slice(out, int(outputs))
	for i, tensor := range tensors {
		slots[i] = tensor.c
	}
}

func codeOf(err error) int {
	if err == io.EOF {
		return CodeOutOfRange
	}
	if errors.Is(err, ErrCancelled) {
		return CodeCancelled
	}
	if own := (*Error)(nil); errors.As(err, &own) {
		return own.Code
	}
	return CodeInternal
}
