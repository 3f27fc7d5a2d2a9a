"""Sessions with dispatchers: one per address, for the life of the process."""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import threading
from typing import Any

from pecan._src import errors
from pecan._src.client import native
from pecan._src.version import VERSION

_log = logging.getLogger("pecan")
# How often what the Go side has to say is looked for.
_NOTICE_S = 1.0
_PROBE_S = 2.0


class Session:
    """A connection to one dispatcher.

    Attributes:
        target: Its address.
    """

    def __init__(self, target: str, timeout_s: float) -> None:
        self.target = target
        self._native = native.load()
        config = {"target": target, "timeout_s": timeout_s, "version": VERSION}
        self._handle: int = self._native.wait("Connect", json.dumps(config))

    def register(self, header: dict[str, Any], graph: bytes) -> dict[str, Any]:
        """Stores a dataset; see RegisterDataset in the Go package bindings."""
        answer: dict[str, Any] = self._native.wait_json("RegisterDataset", self._handle, json.dumps(header), graph)
        return answer

    def dataset(self, dataset_id: str, components: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Returns a registered dataset. Raises if its components differ from the given ones."""
        answer: dict[str, Any] = self._native.wait_json("GetDataset", self._handle, dataset_id, json.dumps(components))
        return answer

    def create_job(self, request: dict[str, Any], header: dict[str, Any] | None, graph: bytes) -> dict[str, Any]:
        """Finds or creates a job; see CreateJob in the Go package bindings."""
        answer: dict[str, Any] = self._native.wait_json(
            "CreateJob", self._handle, json.dumps(request), json.dumps(header or {}), graph
        )
        return answer

    def status(self) -> dict[str, Any]:
        """Returns the status of the service, as `pecanctl status --json` shows it."""
        answer: dict[str, Any] = self._native.wait_json("Status", self._handle)
        return answer

    def explain(self, job: str) -> dict[str, Any]:
        """Why the steps of a job run in the order in which they do; see Explain in the Go package bindings."""
        answer: dict[str, Any] = self._native.wait_json("Explain", self._handle, job)
        return answer

    def stats(self) -> dict[str, Any]:
        """Memory and objects that this process holds."""
        answer: dict[str, Any] = self._native.call_json("Stats", self._handle)
        return answer

    def notices(self) -> list[str]:
        """What the Go side has to tell people since the last call."""
        return self._native.call_json("Notices", self._handle) or []

    def fail(self, message: str) -> None:
        """Lets everything that waits in this session fail with a message: what it waits for will not come."""
        self._native.call("Fail", self._handle, message)

    def close(self) -> None:
        """Closes the session and everything that uses it."""
        self._native.call("Disconnect", self._handle)


class _Sessions:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}
        self._retired: set[str] = set()
        self._teller: threading.Thread | None = None
        self._done = threading.Event()

    def get(self, target: str, timeout_s: float) -> Session:
        # A child that was forked off finds its parent's sessions here, and load() tells it that they are not its own.
        native.load()
        with self._lock:
            session = self._open.get(target)
        if session is not None:
            return session
        if target in self._retired:
            _look_for_another(target)
        fresh = Session(target, timeout_s)
        with self._lock:
            session = self._open.setdefault(target, fresh)
            if self._teller is None:
                self._teller = threading.Thread(target=self._tell, name="pecan-notices", daemon=True)
                self._teller.start()
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

    def _tell(self) -> None:
        """Makes long waits visible: whoever looks at the trainer's log sees why nothing moves."""
        while not self._done.wait(_NOTICE_S):
            with self._lock:
                sessions = list(self._open.values())
            for session in sessions:
                _show_notices(session)

    def _close_all(self, pid: int) -> None:
        if os.getpid() != pid:
            return
        self._done.set()
        with self._lock:
            sessions, self._open = list(self._open.values()), {}
        for session in sessions:
            _show_notices(session)
            try:
                session.close()
            except errors.PecanError as error:
                _log.debug("closing the session with %s: %s", session.target, error)


def _show_notices(session: Session) -> None:
    """Logs what the session had to say since the last time, also when a short script is over before its turn came."""
    try:
        notices = session.notices()
    except errors.PecanError:
        return
    for notice in notices:
        _log.warning("%s: %s", session.target, notice)


def _look_for_another(target: str) -> None:
    """Refuses an address whose dispatcher this process stopped, unless something serves there again."""
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
    except OSError:
        raise errors.make(
            f"the dispatcher at {target} was stopped by this process, and nothing else answers there: make a new "
            "cluster, and give its target [pecan:UNAVAILABLE]",
            "UNAVAILABLE",
            14,
        ) from None


_sessions = _Sessions()


def connect(target: str, timeout_s: float) -> Session:
    """The session with a dispatcher, made at the first call."""
    return _sessions.get(target, timeout_s)


def disconnect(target: str) -> None:
    """Ends the session with a dispatcher, if there is one: the next `connect` makes a new one."""
    _sessions.drop(target)


def retire(target: str) -> None:
    """Ends the session with a dispatcher that this process stops: who asks for it again is not kept waiting."""
    _sessions.retire(target)


def fail(target: str, message: str) -> None:
    """Lets everything that waits for a service fail with a message."""
    _sessions.fail(target, message)
