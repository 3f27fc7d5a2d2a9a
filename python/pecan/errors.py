"""The exceptions of Pecan.

Every exception is a `PecanError` and also of a matching built-in class (`ValueError`, `ConnectionError`, ...). If
TensorFlow is loaded, it is also of the class of `tf.errors` that tf.data service raises in the same case.
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
