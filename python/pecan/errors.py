"""The exceptions of Pecan.

All are `PecanError`, and each is the builtin kind that fits as well (`ValueError`, `ConnectionError`, ...). Those that
answer for something tf.data service reports through `tf.errors` are of that class too.
"""

from pecan._src.errors import (
    AuthError,
    DataLossError,
    InvalidArgumentError,
    InvalidGraphError,
    InvalidTypeError,
    JobMismatchError,
    LimitError,
    NotFoundError,
    PecanError,
    PreconditionError,
    ServerError,
    ServiceUnavailable,
    UnsupportedError,
    UnsupportedOpError,
    UsedAfterForkError,
)

__all__ = [
    "AuthError",
    "DataLossError",
    "InvalidArgumentError",
    "InvalidGraphError",
    "InvalidTypeError",
    "JobMismatchError",
    "LimitError",
    "NotFoundError",
    "PecanError",
    "PreconditionError",
    "ServerError",
    "ServiceUnavailable",
    "UnsupportedError",
    "UnsupportedOpError",
    "UsedAfterForkError",
]
