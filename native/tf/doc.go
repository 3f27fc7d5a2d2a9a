// Package tf runs serialised dataset graphs through TensorFlow's eager C API. It has contexts that never open an
// accelerator, iterators that can be cancelled, and tensors whose memory Go reads, or lends, without a copy. Through its source op
// PecanPull, a graph reads elements from this process.
//
// All hot paths are loops in C, so one call from Go fetches one large element or a whole block of small ones.
// The package uses only exported functions of the C API, so the same binary runs with every TensorFlow that
// has them.
//
// context.go starts the runtime. iterator.go runs a graph. fill.go fetches many elements into blocks and packs. state.go
// saves and restores an iterator. pooled.go runs many streams in one iterator. pull.go registers sources. tensor.go has
// tensors. registry.go lists TensorFlow's ops. crash.go reports crashes of native code. Their C side is executor.c (contexts
// and iterators), fill.c, tensor.c, pull.c and crash.c. tensorflow.h declares what Go calls. iterator.h and crash.h declare
// what the C files share.
//
// The package has more than 15 files because half of them are the C side of the others.
//
// Iterator.calls is held for reading during every call into TensorFlow; it is taken before Iterator.fetching.
package tf

// #cgo CFLAGS: -I${SRCDIR}/../../build/native/tensorflow/include
// #cgo LDFLAGS: -L${SRCDIR}/../../build/native/tensorflow -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2
// #cgo CFLAGS: -O2 -std=gnu11
// #include <stdlib.h>
// #include "tensorflow.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Codes of TensorFlow's status that callers distinguish. They equal gRPC's.
const (
	CodeCancelled       = 1
	CodeInvalidArgument = 3
	CodeOutOfRange      = 11
	CodeInternal        = 13
)

// Error is a status of TensorFlow.
type Error struct {
	Code    int
	Message string
}

// Error returns TensorFlow's own message.
func (e *Error) Error() string { return e.Message }

// Version returns the version of the running TensorFlow.
func Version() string { return C.GoString(C.TF_Version()) }

// status is a reusable TF_Status.
type status struct{ c *C.TF_Status }

func newStatus() status { return status{C.TF_NewStatus()} }

func (s status) free() { C.TF_DeleteStatus(s.c) }

func (s status) err() error {
	code := C.TF_GetCode(s.c)
	if code == C.TF_OK {
		return nil
	}
	return &Error{Code: int(code), Message: C.GoString(C.TF_Message(s.c))}
}

func setStatus(s *C.TF_Status, code int, message string) {
	text := C.CString(message)
	C.TF_SetStatus(s, C.TF_Code(code), text)
	C.free(unsafe.Pointer(text))
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
