"""Checks of single argument values. Each function returns the value in one form, or raises an error that names it."""

from __future__ import annotations

import math
import numbers
import sys
from typing import Any

from pecan._src import errors

_MAX_INTEGER = (1 << 63) - 1
# The longest duration that a program accepts as a flag.
_MAX_MILLISECONDS = 10 * 365 * 86_400_000


def name(what: str, value: Any) -> str | None:
    """Returns a text that is not empty, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise errors.InvalidArgumentError(f"`{what}` must be a string, got {value!r} of type {type(value).__name__}")
    if not value:
        raise errors.InvalidArgumentError(f"`{what}` must not be empty")
    return value


def dataset_id(value: Any) -> str | None:
    """Returns a dataset id as text, or None. Like tf.data service, it accepts tensors and bytes."""
    if value is None:
        return None
    numpy = getattr(value, "numpy", None)
    if callable(numpy):
        value = numpy()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise errors.InvalidTypeError(f"`dataset_id` must be a string, got {value!r} of type {type(value).__name__}")
    if not value:
        raise errors.InvalidArgumentError("`dataset_id` must not be empty")
    if not value.isprintable():
        # The Go code checks the grammar, but a NUL or a lone surrogate cannot be passed to it.
        raise errors.make(
            f"dataset_id {value!r}: want 1 to 128 letters, digits, dots, underscores or hyphens, the first a letter "
            "or digit [pecan:BAD_NAME]",
            "BAD_NAME",
            3,
        )
    return value


def integer(what: str, value: Any) -> int:
    """Returns an integer of Python or NumPy. Booleans are refused."""
    index = getattr(value, "__index__", None)
    if isinstance(value, bool) or index is None:
        raise errors.InvalidTypeError(f"`{what}` must be an integer, got {value!r} of type {type(value).__name__}")
    return int(index())


def positive(what: str, value: Any) -> int:
    """Returns an integer above 0."""
    number = integer(what, value)
    if number <= 0:
        raise errors.InvalidArgumentError(f"`{what}` must be above 0, got {number}")
    if number > _MAX_INTEGER:
        raise errors.InvalidArgumentError(f"`{what}` must be at most {_MAX_INTEGER} (2**63 - 1), got {number}")
    return number


def milliseconds(what: str, value: Any) -> int:
    """Returns a duration above 0 in whole milliseconds."""
    number = positive(what, value)
    if number > _MAX_MILLISECONDS:
        raise errors.InvalidArgumentError(
            f"`{what}` must be at most {_MAX_MILLISECONDS} milliseconds (ten years), got {number}"
        )
    return number


def flag(what: str, value: Any) -> bool:
    """Returns a boolean of Python or NumPy. Numbers are refused."""
    # If the value is of NumPy, NumPy is loaded. Importing it for other values would cost time.
    numpy = sys.modules.get("numpy")
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        return bool(value)
    raise errors.InvalidTypeError(f"`{what}` must be True or False, got {value!r}")


def seconds(what: str, value: Any) -> float:
    """Returns a duration above 0 in seconds, at most a year."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise errors.InvalidTypeError(f"`{what}` must be a number of seconds, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or not 0 < number <= 86400 * 365:
        raise errors.InvalidArgumentError(f"`{what}` must be a finite number of seconds above 0, got {value!r}")
    return number


def service_target(service: Any, what: str = "service") -> str:
    """Returns the address "host:port" for "host:port", "pecan://host:port" or ("pecan", "host:port")."""
    if isinstance(service, tuple):
        if len(service) != 2 or not all(isinstance(part, str) for part in service):
            raise errors.InvalidArgumentError(f'`{what}` as a tuple must be ("pecan", "host:port"), got {service!r}')
        service = "://".join(service)
    if not isinstance(service, str):
        raise errors.InvalidArgumentError(
            f'`{what}` must be a string, "host:port" or "pecan://host:port", got {service!r} of type '
            f"{type(service).__name__}"
        )
    if not service:
        raise errors.InvalidArgumentError(
            f'`{what}` must not be empty: give "host:port"'
            + (", or None for a private cluster" if what == "service" else "")
        )
    if service.startswith("unix:"):
        return service
    parts = service.split("://")
    if len(parts) > 2:
        raise errors.InvalidArgumentError(f"malformed `{what}`: multiple '://' in {service!r}")
    if len(parts) == 2 and parts[0] != "pecan":
        hint = " (the protocol of tf.data service, which Pecan does not support)" if parts[0] == "grpc" else ""
        raise errors.make(
            f'`{what}` {service!r} has the protocol {parts[0]!r}{hint}: give "host:port" or "pecan://host:port"',
            "BAD_ARGUMENT",
            5,
        )
    host, colon, port = parts[-1].rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise errors.InvalidArgumentError(
            f'`{what}` {service!r} is not an address: give "host:port" or "pecan://host:port", port 1 to 65535'
        )
    return parts[-1]


def one_of(what: str, value: Any, words: tuple[str, ...]) -> str:
    """Returns the value if it is one of the words."""
    if isinstance(value, str) and value in words:
        return value
    raise errors.InvalidArgumentError(f"`{what}` should be one of {', '.join(map(repr, words))}, got {value!r}")
