"""The exceptions of Pecan, and how a failure on the Go side becomes one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, cast


class PecanError(Exception):
    """Root of everything that Pecan raises at a call.

    Errors that come while a dataset is being read are raised by TensorFlow, as subclasses of `tf.errors.OpError`; the
    reason is in their message, as `[pecan:REASON]`.

    Attributes:
        reason: A word of a closed list that programs can compare, for example "PY_FUNCTION". docs/errors.md has them
            all.
        code: The gRPC code number, which is also TensorFlow's.
    """

    reason: str = "INTERNAL"
    code: int = 13
    if not TYPE_CHECKING:
        # Said here, or AutoGraph cannot raise the class again with its own additions to the message.
        __init__ = Exception.__init__


class InvalidArgumentError(PecanError, ValueError):
    """An argument has a value that cannot be right."""

    reason = "BAD_ARGUMENT"
    code = 3


class InvalidTypeError(PecanError, TypeError):
    """An argument is not of the type it has to be."""

    reason = "BAD_ARGUMENT"
    code = 3


class InvalidGraphError(InvalidArgumentError):
    """The dataset's graph cannot be used as it is."""

    reason = "GRAPH_STRUCTURE"


class JobMismatchError(InvalidArgumentError):
    """A job of that name exists with other options or another dataset, or a dataset id with another structure."""

    reason = "JOB_MISMATCH"


class NotFoundError(PecanError, LookupError):
    """Something was named that the service does not know."""

    reason = "DATASET_UNKNOWN"
    code = 5


class PreconditionError(PecanError, RuntimeError):
    """The call is right, but not in the state that things are in."""

    reason = "CLOSED"
    code = 9


class UsedAfterForkError(PreconditionError):
    """Pecan was loaded in a process and then used in one that was forked off it."""

    reason = "USED_AFTER_FORK"


class UnsupportedError(PecanError, NotImplementedError):
    """What was asked for is not offered."""

    reason = "UNSUPPORTED"
    code = 12


class UnsupportedOpError(UnsupportedError):
    """The dataset has an operation that workers cannot run."""

    reason = "OP_UNKNOWN"


class LimitError(PecanError, ValueError):
    """Something is larger than a limit allows."""

    reason = "MESSAGE_TOO_LARGE"
    code = 8


class AuthError(PecanError, PermissionError):
    """The service does not allow it."""

    reason = "OP_FORBIDDEN"
    code = 7


class ServiceUnavailable(PecanError, ConnectionError):
    """The service, or a process of it, cannot be reached."""

    reason = "UNAVAILABLE"
    code = 14


class ServerError(PecanError, RuntimeError):
    """A server of this process did not start, or ended."""

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
    1: PreconditionError,  # CANCELLED: what was asked is closed
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
    """The class that is also tf.errors' for the code.

    Who comes from tf.data service catches `tf.errors.NotFoundError` and the like, so where TensorFlow is loaded (it
    always is when a dataset is at hand) an error is of both kinds.
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
        found = getattr(errors, names.get(code, ""), None)
        if found is None:
            return kind
        base = found

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
    """The exception for a reason of the closed list and its code."""
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, PecanError)
    error: PecanError = _with_tensorflow(kind, code)(message)
    error.reason = reason
    error.code = code
    return error


def from_text(text: str) -> PecanError:
    """The exception for the text of an error of the Go side (see the package documentation of bindings)."""
    try:
        parts = json.loads(text)
        message, reason, code = str(parts["message"]), str(parts["reason"]), int(parts["code"])
    except (ValueError, KeyError, TypeError):
        return PecanError(text)
    return make(f"{message} [pecan:{reason}]", reason, code)
