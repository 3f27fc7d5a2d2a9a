"""Sessions with dispatchers: one per address, open until the process ends."""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import threading
import uuid
from typing import Any

from pecan._src import errors
from pecan._src.client import native
from pecan._src.version import VERSION

_log = logging.getLogger("pecan")
# Seconds between two reads of the messages of the Go code, and the levels of its messages.
_MESSAGES_INTERVAL_S = 1.0
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING}
# Timeout for a connection to an address whose dispatcher this process stopped.
_PROBE_S = 2.0
_trainer: tuple[int, str] = (0, "")


def trainer_id() -> str:
    """Returns the random id of this process. Its local workers declare it."""
    global _trainer
    if _trainer[0] != os.getpid():
        _trainer = (os.getpid(), uuid.uuid4().hex)
    return _trainer[1]


class Session:
    """A connection to one dispatcher.

    Methods that ask the dispatcher wait for its answer and raise a PecanError if it refuses or is unreachable.

    Attributes:
        target: Address of the dispatcher.
    """

    def __init__(self, target: str, timeout_s: float) -> None:
        """Connects.

        Args:
            target: Address of the dispatcher.
            timeout_s: Seconds without the dispatcher after which a call fails.
        """
        self.target = target
        self._native = native.load()
        config = {"target": target, "timeout_s": timeout_s, "version": VERSION, "trainer": trainer_id()}
        self._handle: int = self._native.wait("Connect", json.dumps(config))

    def register(self, header: dict[str, Any], graph: bytes) -> dict[str, Any]:
        """Registers a dataset; see RegisterDataset in the Go package bindings."""
        answer: dict[str, Any] = self._native.wait_json("RegisterDataset", self._handle, json.dumps(header), graph)
        return answer

    def dataset(self, dataset_id: str, components: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Returns a registered dataset. Raises if its components differ from the given ones."""
        answer: dict[str, Any] = self._native.wait_json("GetDataset", self._handle, dataset_id, json.dumps(components))
        return answer

    def create_job(
        self, request: dict[str, Any], header: dict[str, Any] | None, graph: bytes, undivided: bytes
    ) -> dict[str, Any]:
        """Finds or creates a job; see CreateJob in the Go package bindings."""
        answer: dict[str, Any] = self._native.wait_json(
            "CreateJob", self._handle, json.dumps(request), json.dumps(header or {}), graph, undivided
        )
        return answer

    def status(self) -> dict[str, Any]:
        """Returns the status of the service, as `pecanctl status --json` shows it."""
        answer: dict[str, Any] = self._native.wait_json("Status", self._handle)
        return answer

    def explain(self, job: str) -> dict[str, Any]:
        """Returns the explanation of a job; see Explain in the Go package bindings."""
        answer: dict[str, Any] = self._native.wait_json("Explain", self._handle, job)
        return answer

    def local_workers(self, running: int, most: int) -> tuple[int, int, str]:
        """Reports the local workers of this process to the dispatcher, and returns how many it wants.

        Args:
            running: Number of local workers.
            most: The most that may run.

        Returns:
            The number of jobs for which the dispatcher decides, how many workers it wants (-1 before it has decided),
            and why.
        """
        answer = self._native.call_json("LocalWorkers", self._handle, running, most)
        return answer["jobs"], answer["number"], answer["why"]

    def stats(self) -> dict[str, Any]:
        """Returns the memory and the objects that Pecan uses in this process; see Stats in the Go package bindings."""
        answer: dict[str, Any] = self._native.call_json("Stats", self._handle)
        return answer

    def messages(self) -> list[dict[str, str]]:
        """Returns what the Go code has logged since the last call: "level" ("info" or "warning") and "text"."""
        return self._native.call_json("Messages", self._handle) or []

    def fail(self, message: str) -> None:
        """Fails all calls and iterators that wait in this session, with the given message."""
        self._native.call("Fail", self._handle, message)

    def close(self) -> None:
        """Closes the session. Jobs and iterators that use it fail afterwards."""
        self._native.call("Disconnect", self._handle)


class _Sessions:
    """All open sessions of this process, and the thread that logs their messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}
        self._retired: set[str] = set()
        self._messages_thread: threading.Thread | None = None
        self._closing = threading.Event()

    def get(self, target: str, timeout_s: float) -> Session:
        native.load()  # raises in a forked child, which has the sessions of its parent here
        with self._lock:
            session = self._open.get(target)
        if session is not None:
            return session
        if target in self._retired:
            _check_served_again(target)
        fresh = Session(target, timeout_s)
        with self._lock:
            session = self._open.setdefault(target, fresh)
            if self._messages_thread is None:
                self._messages_thread = threading.Thread(target=self._log_messages, name="pecan-messages", daemon=True)
                self._messages_thread.start()
                atexit.register(self._close_all, os.getpid())
        if session is not fresh:
            fresh.close()
        return session

    def drop(self, target: str) -> None:
        with self._lock:
            session = self._open.pop(target, None)
        if session is not None:
            session.close()

    def retire(self, target: str) -> None:
        self._retired.add(target)
        self.drop(target)

    def fail(self, target: str, message: str) -> None:
        with self._lock:
            session = self._open.get(target)
        if session is not None:
            session.fail(message)

    def _log_messages(self) -> None:
        """Logs messages while sessions are open, so that the trainer's log explains long waits."""
        while not self._closing.wait(_MESSAGES_INTERVAL_S):
            with self._lock:
                sessions = list(self._open.values())
            for session in sessions:
                _log_messages_of(session)

    def _close_all(self, pid: int) -> None:
        if os.getpid() != pid:
            return
        self._closing.set()
        with self._lock:
            sessions, self._open = list(self._open.values()), {}
        for session in sessions:
            _log_messages_of(session)  # those of a short script, which ended before the thread read them
            try:
                session.close()
            except errors.PecanError as error:
                _log.debug("closing the session with %s: %s", session.target, error)


def _log_messages_of(session: Session) -> None:
    """Logs the session's new messages."""
    try:
        messages = session.messages()
    except errors.PecanError:
        return
    for message in messages:
        _log.log(_LEVELS[message["level"]], "%s: %s", session.target, message["text"])


def _check_served_again(target: str) -> None:
    """Raises for an address whose dispatcher this process stopped, unless another one serves there now."""
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
    except OSError:
        raise errors.make(
            f"the dispatcher at {target} was stopped by this process, and nothing else listens there: create a new "
            "cluster, and give its target [pecan:UNAVAILABLE]",
            "UNAVAILABLE",
            errors.ServiceUnavailable.code,
        ) from None


_sessions = _Sessions()


def connect(target: str, timeout_s: float) -> Session:
    """Returns the session with a dispatcher. The first call creates it, with `timeout_s` seconds as its timeout."""
    return _sessions.get(target, timeout_s)


def disconnect(target: str) -> None:
    """Closes the session with a dispatcher, if there is one. The next `connect` creates a new one."""
    _sessions.drop(target)


def retire(target: str) -> None:
    """Closes the session with a dispatcher that this process stops. A later `connect` fails without a long wait."""
    _sessions.retire(target)


def fail(target: str, message: str) -> None:
    """Fails all calls and iterators that wait for a service, with the given message."""
    _sessions.fail(target, message)
