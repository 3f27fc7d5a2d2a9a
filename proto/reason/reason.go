// Package reason has the closed list of reason codes, and their mapping to gRPC codes. An Error travels as a gRPC status with an ErrorInfo
// (domain "pecan"). Its message names the operation, the limit and the actual value, and what to do. Python maps the code to an exception
// class. docs/reference/errors.md explains every reason; a test compares the page with this list.
package reason

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Domain marks our ErrorInfo details.
const Domain = "pecan"

// Reason is a reason code of the closed list.
type Reason string

// The reason codes.
const (
	GraphParse       Reason = "GRAPH_PARSE"
	GraphStructure   Reason = "GRAPH_STRUCTURE"
	GraphFunction    Reason = "GRAPH_FUNCTION"
	GraphVersion     Reason = "GRAPH_VERSION"
	GraphLimit       Reason = "GRAPH_LIMIT"
	OpUnknown        Reason = "OP_UNKNOWN"
	OpForbidden      Reason = "OP_FORBIDDEN"
	PyFunction       Reason = "PY_FUNCTION"
	ExternalState    Reason = "EXTERNAL_STATE"
	Nondeterministic Reason = "NONDETERMINISTIC"
	Unsupported      Reason = "UNSUPPORTED"
	SpecMismatch     Reason = "SPEC_MISMATCH"
	ElementSpec      Reason = "ELEMENT_SPEC"
	Cardinality      Reason = "CARDINALITY"
	ElementTooLarge  Reason = "ELEMENT_TOO_LARGE"
	MessageTooLarge  Reason = "MESSAGE_TOO_LARGE"
	ServiceLimit     Reason = "SERVICE_LIMIT"
	BadArgument      Reason = "BAD_ARGUMENT"
	BadName          Reason = "BAD_NAME"
	DatasetUnknown   Reason = "DATASET_UNKNOWN"
	DatasetMismatch  Reason = "DATASET_MISMATCH"
	JobUnknown       Reason = "JOB_UNKNOWN"
	JobMismatch      Reason = "JOB_MISMATCH"
	EpochUnknown     Reason = "EPOCH_UNKNOWN"
	StreamUnknown    Reason = "STREAM_UNKNOWN"
	ClientUnknown    Reason = "CLIENT_UNKNOWN"
	WorkerUnknown    Reason = "WORKER_UNKNOWN"
	TenantUnknown    Reason = "TENANT_UNKNOWN"
	CacheUnknown     Reason = "CACHE_UNKNOWN"
	StaleLease       Reason = "STALE_LEASE"
	ClusterMismatch  Reason = "CLUSTER_MISMATCH"
	ShardingFiles    Reason = "SHARDING_FILES"
	ShardingSource   Reason = "SHARDING_SOURCE"
	ShardingHint     Reason = "SHARDING_HINT"
	Unavailable      Reason = "UNAVAILABLE"
	NoWorkers        Reason = "NO_WORKERS"
	VersionMismatch  Reason = "VERSION_MISMATCH"
	FrameCorrupt     Reason = "FRAME_CORRUPT"
	StoreCorrupt     Reason = "STORE_CORRUPT"
	StoreFull        Reason = "STORE_FULL"
	StaleStore       Reason = "STALE_STORE"
	FileNotVisible   Reason = "FILE_NOT_VISIBLE"
	CacheUnsafe      Reason = "CACHE_ROOT_UNSAFE"
	ElementFailed    Reason = "ELEMENT_FAILED"
	ElementPoison    Reason = "ELEMENT_POISON"
	Closed           Reason = "CLOSED"
	UsedAfterFork    Reason = "USED_AFTER_FORK"
	Interrupted      Reason = "INTERRUPTED"
	Internal         Reason = "INTERNAL"
)

// codeOf maps reasons to gRPC codes.
var codeOf = map[Reason]codes.Code{
	GraphParse: codes.InvalidArgument, GraphStructure: codes.InvalidArgument, GraphFunction: codes.InvalidArgument,
	GraphVersion: codes.FailedPrecondition, GraphLimit: codes.InvalidArgument, OpUnknown: codes.Unimplemented,
	OpForbidden: codes.PermissionDenied, PyFunction: codes.Unimplemented, ExternalState: codes.InvalidArgument, Nondeterministic: codes.InvalidArgument,
	Unsupported: codes.Unimplemented, SpecMismatch: codes.InvalidArgument, ElementSpec: codes.InvalidArgument,
	Cardinality: codes.FailedPrecondition, ElementTooLarge: codes.ResourceExhausted,
	MessageTooLarge: codes.ResourceExhausted, ServiceLimit: codes.ResourceExhausted, BadArgument: codes.InvalidArgument, BadName: codes.InvalidArgument,
	DatasetUnknown: codes.NotFound, DatasetMismatch: codes.InvalidArgument, JobUnknown: codes.NotFound,
	JobMismatch: codes.InvalidArgument, EpochUnknown: codes.NotFound, StreamUnknown: codes.NotFound,
	ClientUnknown: codes.NotFound, WorkerUnknown: codes.NotFound, TenantUnknown: codes.NotFound, CacheUnknown: codes.NotFound, StaleLease: codes.Aborted,
	ClusterMismatch: codes.FailedPrecondition, ShardingFiles: codes.InvalidArgument,
	ShardingSource: codes.NotFound, ShardingHint: codes.FailedPrecondition, Unavailable: codes.Unavailable,
	NoWorkers: codes.Unavailable, VersionMismatch: codes.FailedPrecondition, FrameCorrupt: codes.DataLoss,
	StoreCorrupt: codes.DataLoss, StoreFull: codes.ResourceExhausted, StaleStore: codes.DataLoss, FileNotVisible: codes.NotFound, CacheUnsafe: codes.FailedPrecondition, ElementFailed: codes.InvalidArgument, ElementPoison: codes.DataLoss,
	Closed: codes.Canceled, UsedAfterFork: codes.FailedPrecondition, Interrupted: codes.Canceled,
	Internal: codes.Internal,
}

// Code returns the gRPC code of a reason; Unknown if the list does not have the reason.
func Code(r Reason) codes.Code {
	if c, ok := codeOf[r]; ok {
		return c
	}
	return codes.Unknown
}

// Error is a failure with its reason. Validation returns it, and From converts a received gRPC status to it.
type Error struct {
	Reason  Reason
	Message string
	// Override replaces the code of the reason, for errors that keep TensorFlow's code. OK means no override.
	Override codes.Code
	cause    error
}

// New returns an Error with a formatted message. The verb %w keeps the cause for errors.Is.
func New(r Reason, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Reason: r, Message: err.Error(), cause: errors.Unwrap(err)}
}

// WithCode returns an Error with the given code, for errors of TensorFlow.
func WithCode(r Reason, code codes.Code, message string) *Error {
	return &Error{Reason: r, Message: message, Override: code}
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Code returns the gRPC code.
func (e *Error) Code() codes.Code {
	if e.Override != codes.OK {
		return e.Override
	}
	return Code(e.Reason)
}

// GRPCStatus returns the status that grpc-go sends when a handler returns the Error.
func (e *Error) GRPCStatus() *status.Status {
	st := status.New(e.Code(), e.Message)
	with, err := st.WithDetails(&errdetails.ErrorInfo{Reason: string(e.Reason), Domain: Domain})
	if err != nil {
		return st
	}
	return with
}

// Detail returns the form that the journal stores.
func (e *Error) Detail() *pecanv1.ErrorDetail {
	return &pecanv1.ErrorDetail{Code: int32(e.Code()), Reason: string(e.Reason), Message: e.Message}
}

// FromDetail is the inverse of Detail.
func FromDetail(d *pecanv1.ErrorDetail) *Error {
	return &Error{Reason: Reason(d.GetReason()), Message: d.GetMessage(), Override: codes.Code(d.GetCode())}
}

// From converts any error to an Error. It returns an Error unchanged and reads a gRPC status with Pecan's details. Other errors get a
// reason by their kind: Unavailable or Closed for an ended context, MessageTooLarge for gRPC's size limit, else Internal.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return New(Unavailable, "%w", err)
	case errors.Is(err, context.Canceled):
		return New(Closed, "%w", err)
	}
	st, ok := status.FromError(err)
	if !ok {
		return New(Internal, "%w", err)
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return &Error{Reason: Reason(info.GetReason()), Message: st.Message(), Override: st.Code(), cause: err}
		}
	}
	switch st.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		return &Error{Reason: Unavailable, Message: st.Message(), cause: err}
	case codes.Canceled:
		return &Error{Reason: Closed, Message: st.Message(), cause: err}
	case codes.ResourceExhausted:
		return &Error{Reason: MessageTooLarge, Message: st.Message(), cause: err}
	}
	return &Error{Reason: Internal, Message: st.Message(), Override: st.Code(), cause: err}
}

// Is returns whether err has the reason.
func Is(err error, r Reason) bool { return err != nil && From(err).Reason == r }
