"""Loads Pecan's shared object once per process, and calls its functions.

The object is both an operation library of TensorFlow and a Python extension. TensorFlow must load it first. The
following import gets the same library from the dynamic loader, so the process has one Go runtime.
"""

from __future__ import annotations

import glob
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import queue
import threading
from typing import Any

from pecan._src import errors
from pecan._src.client import interrupts

_MODULE = "_pecan_native"
# Longest wait in seconds between two chances for Python to run the handler of Ctrl-C.
_SLICE_S = 0.1


class Native:
    """The loaded shared object of this process.

    Attributes:
        path: The file of the object.
        pid: The process that loaded it.
        ops: TensorFlow's wrappers of Pecan's operations.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        self.path = _find()
        self.pid = os.getpid()
        self.ops: Any = tf.load_op_library(str(self.path))
        spec = importlib.util.spec_from_file_location(_MODULE, self.path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.path} is not a Python extension")
        self._extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._extension)
        self.handle_interrupts()

    def handle_interrupts(self) -> None:
        """Makes Ctrl-C end waits for elements. Another call also covers signal handlers installed in the meantime."""
        if interrupts.install(self._acknowledge_interrupt):
            self._extension.bindings_HandleInterrupts()

    def _acknowledge_interrupt(self) -> None:
        if os.getpid() == self.pid:
            self._extension.bindings_AcknowledgeInterrupts()

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the Go package bindings that does not block.

        Args:
            name: Name of the function.
            *arguments: Integers, strings, booleans and bytes.

        Raises:
            PecanError: If the function returns an error, or the process was forked.
        """
        self.check()
        function = getattr(self._extension, f"bindings_{name}")
        handles: list[int] = []
        try:
            plain = [self._bytes(a, handles) if isinstance(a, bytes) else a for a in arguments]
            return function(*plain)
        except RuntimeError as error:
            raise errors.from_text(str(error)) from None
        finally:
            for handle in handles:
                self._extension.DecRef(handle)

    def call_json(self, name: str, *arguments: Any) -> Any:
        """Like `call`, for functions that return JSON. Returns the decoded value."""
        return json.loads(self.call(name, *arguments))

    def wait(self, name: str, *arguments: Any) -> Any:
        """Like `call`, for functions that wait for the service. Ctrl-C ends the wait, not the call."""
        self.check()
        if threading.current_thread() is not threading.main_thread():
            return self.call(name, *arguments)
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((self.call(name, *arguments), None))
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                answers.put((None, error))

        threading.Thread(target=run, name=f"pecan-{name}", daemon=True).start()
        while True:
            try:
                answer, error = answers.get(timeout=_SLICE_S)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            return answer

    def wait_json(self, name: str, *arguments: Any) -> Any:
        """Like `wait`, for functions that return JSON. Returns the decoded value."""
        return json.loads(self.wait(name, *arguments))

    def check(self) -> None:
        """Raises in a child forked from the process that loaded the object. Go code would block there forever."""
        if os.getpid() != self.pid:
            raise errors.UsedAfterForkError(
                f"pecan was loaded in process {self.pid} and cannot be used in process {os.getpid()}, which was forked "
                'from it: start processes with the "spawn" or "forkserver" method of multiprocessing, or call pecan '
                "first in the child [pecan:USED_AFTER_FORK]"
            )

    def _bytes(self, data: bytes, handles: list[int]) -> int:
        handle: int = self._extension.Slice_byte_from_bytes(data)
        self._extension.IncRef(handle)
        handles.append(handle)
        return handle


def _find() -> pathlib.Path:
    """Returns the file of the object for this Python. Raises ImportError if there is none."""
    directory = pathlib.Path(__file__).resolve().parents[2] / "_native"
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = directory / f"{_MODULE}{suffix}"
        if path.exists():
            return path
    others = ", ".join(os.path.basename(p) for p in glob.glob(str(directory / "*.so")))
    raise ImportError(
        f"pecan's shared object for this Python ({importlib.machinery.EXTENSION_SUFFIXES[0]}) is not in {directory}"
        + (f", which contains {others}" if others else "")
        + ": install a wheel of pecan for this Python, or, in a source tree, run `python bindings/build.py`"
    )


_lock = threading.Lock()
_loaded: Native | None = None


def load() -> Native:
    """Returns the shared object. The first call loads it."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = Native()
    _loaded.check()
    return _loaded


def loaded() -> Native | None:
    """Returns the shared object if it is loaded, else None."""
    return _loaded
