package tf

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
