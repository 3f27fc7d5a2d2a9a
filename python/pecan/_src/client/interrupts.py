"""Ctrl-C while TensorFlow waits for an element.

Python runs its signal handler between two steps of the main thread, and a thread that waits in TensorFlow makes none.
So Pecan's operation sees the signal itself (native/op) and, if the handler has not run within a slice of its wait,
fails, and TensorFlow returns. The next step that Python makes is inside TensorFlow's translation of that failure,
which turns a KeyboardInterrupt raised there into a RuntimeError of its own. The handler below waits until the
translation is over.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# The exceptions that TensorFlow's C++ makes of a failure, and in whose making the first step of Python may be.
_TRANSLATION = ("tensorflow/python/eager/core.py", "tensorflow/python/framework/errors_impl.py")


def install(answer: Callable[[], None]) -> bool:
    """Puts the handler before the one that is there; False where that is not ours to do.

    Args:
        answer: Called when the handler runs: nobody has to fail for that any more.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # ignored, default, or not Python's: Ctrl-C means what it meant
        return False
    if getattr(previous, "_pecan", False):
        return True

    def handle(number: int, frame: FrameType | None) -> Any:
        answer()
        caller = _caller_of_translation(frame)
        if caller is not None and sys.gettrace() is None:
            _when_raised(caller, previous, number)
            return None
        return previous(number, frame)

    handle._pecan = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, handle)
    return True


def _caller_of_translation(frame: FrameType | None) -> FrameType | None:
    """The frame that waits for a failure to be translated, None where none is."""
    caller = frame
    while caller is not None and _translating(caller):
        caller = caller.f_back
    return None if caller is frame else caller


def _translating(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__init__" and frame.f_code.co_filename.endswith(_TRANSLATION)


def _when_raised(caller: FrameType, previous: Any, number: int) -> None:
    """Calls the previous handler once the frame that called TensorFlow is back: with the failure, or by a next step."""

    def back(frame: FrameType, event: str, argument: Any) -> Any:
        sys.settrace(None)
        frame.f_trace = None
        previous(number, frame)
        return None

    caller.f_trace = back
    sys.settrace(lambda frame, event, argument: None)
