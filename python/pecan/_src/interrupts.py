"""Ctrl-C while TensorFlow waits for an element.

Python runs its signal handler between two steps of the main thread, and a thread that waits in TensorFlow makes none.
So Pecan's operation sees the signal itself (native/op) and fails, and TensorFlow returns. The next step that Python
makes is inside TensorFlow's translation of that failure, which turns a KeyboardInterrupt raised there into a
RuntimeError of its own. The handler below waits until the translation is over.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

_TRANSLATION = ("tensorflow/python/eager/core.py", "__init__")


def install() -> bool:
    """Puts the handler before the one that is there; False where that is not ours to do."""
    if threading.current_thread() is not threading.main_thread():
        return False
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # ignored, default, or not Python's: Ctrl-C means what it meant
        return False
    if getattr(previous, "_pecan", False):
        return True

    def handle(number: int, frame: FrameType | None) -> Any:
        if frame is not None and frame.f_back is not None and sys.gettrace() is None and _translating(frame):
            _when_raised(frame.f_back, previous, number)
            return None
        return previous(number, frame)

    handle._pecan = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, handle)
    return True


def _translating(frame: FrameType) -> bool:
    file, name = _TRANSLATION
    return frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file)


def _when_raised(caller: FrameType, previous: Any, number: int) -> None:
    """Calls the previous handler once the translated failure arrives in the frame that called TensorFlow."""

    def arrived(frame: FrameType, event: str, argument: Any) -> Any:
        if event != "exception":
            return arrived
        sys.settrace(None)
        frame.f_trace = None
        previous(number, frame)
        return None

    caller.f_trace = arrived
    sys.settrace(lambda frame, event, argument: None)
