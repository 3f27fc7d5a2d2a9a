"""The exceptions of Pecan, and their construction from errors of the Go code."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, cast


class PecanError(Exception):
    """Base class of all exceptions that calls of Pecan raise.

    While a dataset is read, TensorFlow raises the errors, as subclasses of `tf.errors.OpError`. Their message contains
    the reason code as `[pecan:REASON]`.

    Attributes:
        reason: Reason code, one of a closed list that programs can compare, for example "PY_FUNCTION".
            docs/reference/errors.md lists all of them.
        code: The gRPC code number, which TensorFlow uses too.
    """

    reason: str = "INTERNAL"
    code: int = 13
    if not TYPE_CHECKING:
        # Without this line AutoGraph cannot raise the class again with an extended message.
        __init__ = Exception.__init__


class InvalidArgumentError(PecanError, ValueError):
    """An argument has an invalid value."""

    reason = "BAD_ARGUMENT"
    code = 3


class InvalidTypeError(PecanError, TypeError):
    """An argument has the wrong type."""

    reason = "BAD_ARGUMENT"
    code = 3


class InvalidGraphError(InvalidArgumentError):
    """The dataset's graph is invalid for Pecan."""

    reason = "GRAPH_STRUCTURE"


class JobMismatchError(InvalidArgumentError):
    """The name belongs to a job with other options or another dataset, or the id to a dataset of another structure."""

    reason = "JOB_MISMATCH"


class NotFoundError(PecanError, LookupError):
    """The service does not know the given name or id."""

    reason = "DATASET_UNKNOWN"
    code = 5


class PreconditionError(PecanError, RuntimeError):
    """The call is valid, but not in the current state of the object or the service."""

    reason = "CLOSED"
    code = 9


class UsedAfterForkError(PreconditionError):
    """A process loaded Pecan, and a child forked from it used Pecan."""

    reason = "USED_AFTER_FORK"


class UnsupportedError(PecanError, NotImplementedError):
    """Pecan does not support the request."""

    reason = "UNSUPPORTED"
    code = 12


class UnsupportedOpError(UnsupportedError):
    """The dataset contains an operation that workers cannot run."""

    reason = "OP_UNKNOWN"


class LimitError(PecanError, ValueError):
    """A size exceeds its limit."""

    reason = "MESSAGE_TOO_LARGE"
    code = 8


class AuthError(PecanError, PermissionError):
    """The service does not allow the operation."""

    reason = "OP_FORBIDDEN"
    code = 7


class ServiceUnavailable(PecanError, ConnectionError):
    """The service, or one of its processes, is unreachable."""

    reason = "UNAVAILABLE"
    code = 14


class ServerError(PecanError, RuntimeError):
    """A server that this process started did not start up, or has ended."""

    reason = "UNAVAILABLE"
    code = 14


class DataLossError(PecanError):
    """Stored or transferred data is damaged."""

    reason = "STORE_CORRUPT"
    code = 15


_BY_REASON: dict[str, type[PecanError]] = {
    "JOB_MISMATCH": JobMismatchError,
    "DATASET_MISMATCH": JobMismatchError,
    "BAD_ARGUMENT": InvalidArgumentError,
    "BAD_NAME": InvalidArgumentError,
    "SHARDING_FILES": InvalidArgumentError,
    "UNSUPPORTED": UnsupportedError,
    "USED_AFTER_FORK": UsedAfterForkError,
}

_BY_CODE: dict[int, type[PecanError]] = {
    1: PreconditionError,  # CANCELLED: the object is closed
    3: InvalidGraphError,
    4: ServiceUnavailable,  # DEADLINE_EXCEEDED
    5: NotFoundError,
    7: AuthError,
    8: LimitError,
    9: PreconditionError,
    12: UnsupportedOpError,
    14: ServiceUnavailable,
    15: DataLossError,
    16: AuthError,
}

_mixed: dict[tuple[type[PecanError], int], type[PecanError]] = {}


def _with_tensorflow(kind: type[PecanError], code: int) -> type[PecanError]:
    """Returns a subclass of `kind` and of the class of `tf.errors` for the code, or `kind` without TensorFlow.

    Code written for tf.data service catches classes such as `tf.errors.NotFoundError`. TensorFlow is always loaded
    when a dataset exists, so errors about datasets are of both classes.
    """
    tensorflow = sys.modules.get("tensorflow")
    errors = getattr(tensorflow, "errors", None)
    if errors is None:
        return kind
    known = _mixed.get((kind, code))
    if known is not None:
        return known
    try:
        base: type[Exception] = errors.exception_type_from_error_code(code)
    except (AttributeError, KeyError):
        names = {1: "CancelledError", 3: "InvalidArgumentError", 4: "DeadlineExceededError", 5: "NotFoundError",
                 7: "PermissionDeniedError", 8: "ResourceExhaustedError", 9: "FailedPreconditionError",
                 12: "UnimplementedError", 14: "UnavailableError", 15: "DataLossError",
                 16: "UnauthenticatedError"}  # fmt: skip
        named = getattr(errors, names.get(code, ""), None)
        if named is None:
            return kind
        base = named

    def __init__(self: Any, message: str) -> None:
        initialise: Any = base.__init__
        initialise(self, None, None, message)

    def __str__(self: Any) -> str:
        return str(self.message)

    def __reduce__(self: Any) -> Any:
        return make, (str(self), self.reason, code)

    members = {"__init__": __init__, "__str__": __str__, "__reduce__": __reduce__, "__module__": kind.__module__,
               "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}  # fmt: skip
    mixed = cast("type[PecanError]", type(kind.__name__, (kind, base), members))
    _mixed[kind, code] = mixed
    return mixed


def make(message: str, reason: str, code: int) -> PecanError:
    """Returns the exception for a reason code and its gRPC code."""
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, PecanError)
    error: PecanError = _with_tensorflow(kind, code)(message)
    error.reason = reason
    error.code = code
    return error


def from_text(text: str) -> PecanError:
    """Returns the exception for the text of a Go error (see the package documentation of bindings)."""
    try:
        parts = json.loads(text)
        message, reason, code = str(parts["message"]), str(parts["reason"]), int(parts["code"])
    except (ValueError, KeyError, TypeError):
        return PecanError(text)
    return make(f"{message} [pecan:{reason}]", reason, code)
