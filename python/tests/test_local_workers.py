"""Local workers as child processes, without a dispatcher."""

import threading

from pecan._src.servers import priority
from pecan._src.servers.local_workers import LocalWorkers


def test_nobody_waits_while_the_kernel_lets_a_priority_wait(monkeypatch):
    """A kernel may allow one change of a session's nice value in 0.1 s only."""
    began, allowed = threading.Event(), threading.Event()

    def lower(pid: int, nice: int) -> None:
        began.set()
        assert allowed.wait(60)

    monkeypatch.setattr(priority, "lower", lower)
    failures: list[str] = []
    workers = LocalWorkers("127.0.0.1:1", "local workers", failures.append, "127.0.0.1:0")
    keeper = threading.Thread(target=workers.keep, args=(1, 5))
    keeper.start()
    try:
        assert began.wait(60)
        free = workers._lock.acquire(blocking=False)
        if free:
            workers._lock.release()
        assert free, "the lock is held while a priority is lowered"
        assert len(workers.processes) == 1
    finally:
        allowed.set()
        keeper.join()
        workers.stop()
    assert failures == []
