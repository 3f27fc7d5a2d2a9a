"""Lets Ctrl-C end a wait for an element inside TensorFlow.

Python runs signal handlers between two bytecodes of the main thread. A thread that waits in TensorFlow runs none.
Pecan's operation therefore detects the signal itself (native/op). If Python's handler has not run soon afterwards, the
operation fails, and TensorFlow returns. Python's next bytecode is in TensorFlow's translation of that failure to an
exception. A KeyboardInterrupt raised there becomes an unrelated RuntimeError. The handler below therefore calls the
previous handler only after the translation.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# Files of the exception classes that TensorFlow's C++ code instantiates for a failure.
_TRANSLATION = ("tensorflow/python/eager/core.py", "tensorflow/python/framework/errors_impl.py")


def install(acknowledge: Callable[[], None]) -> bool:
    """Installs a handler for SIGINT that calls the current one.

    Args:
        acknowledge: Called when the handler runs. It tells waiting operations that they need not fail for this signal.

    Returns:
        Whether the handler is installed. False on other threads than the main thread, and if SIGINT is ignored or has
        no handler in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # ignored, default, or installed by C code: leave Ctrl-C unchanged
        return False
    if getattr(previous, "_pecan", False):
        return True

    def handle(number: int, frame: FrameType | None) -> Any:
        acknowledge()
        caller = _caller_of_translation(frame)
        if caller is not None and sys.gettrace() is None:
            _call_after_return(caller, previous, number)
            return None
        return previous(number, frame)

    handle._pecan = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, handle)
    return True


def _caller_of_translation(frame: FrameType | None) -> FrameType | None:
    """Returns the frame that called TensorFlow, if `frame` is inside the translation of a failure; else None."""
    caller = frame
    while caller is not None and _is_translation(caller):
        caller = caller.f_back
    return None if caller is frame else caller


def _is_translation(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__init__" and frame.f_code.co_filename.endswith(_TRANSLATION)


def _call_after_return(caller: FrameType, previous: Any, number: int) -> None:
    """Calls the previous handler as soon as `caller` runs again, with the exception or with its next line."""

    def on_event(frame: FrameType, event: str, argument: Any) -> Any:
        sys.settrace(None)
        frame.f_trace = None
        previous(number, frame)
        return None

    caller.f_trace = on_event
    sys.settrace(lambda frame, event, argument: None)
