// Package tf runs serialised dataset graphs through TensorFlow's eager C API: contexts that never open an accelerator,
// iterators that can be cancelled, tensors whose memory Go reads without a copy, and the source op PecanPull by which a
// graph takes its elements from this process.
//
// Everything hot is a loop in C, so that one call from Go fetches one large element or a whole block of small ones.
// Only exported functions of the C API are used; the same binary runs with every TensorFlow that has them.
package tf

// #cgo pkg-config: tensorflow
// #cgo CFLAGS: -O2 -std=gnu11
// #include <stdlib.h>
// #include "tensorflow.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Codes of TensorFlow's status that callers tell apart (they equal gRPC's).
const (
	CodeCancelled       = 1
	CodeInvalidArgument = 3
	CodeNotFound        = 5
	CodeOutOfRange      = 11
	CodeInternal        = 13
)

// Error is a status of TensorFlow.
type Error struct {
	Code    int
	Message string
}

// Error gives TensorFlow's own message.
func (e *Error) Error() string { return e.Message }

// Version is the version of the TensorFlow that runs.
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
