"""The three programs as an operator uses them."""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO

import pecan
import pytest
import tensorflow as tf

# The console commands that the wheel installs, and the functions behind them.
COMMANDS = {"pecan-dispatcher": "dispatcher", "pecan-worker": "worker", "pecanctl": "control"}


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(pathlib.Path(pecan.__file__).parents[1])}


def command(name: str, *flags: str) -> list[str]:
    """A console command that also works if the package is not installed."""
    return [sys.executable, "-c", f"from pecan._src.servers import programs; programs.{COMMANDS[name]}()", *flags]


class Program:
    """A program that has printed its listen address. `through` is a command that starts it, such as `ip netns exec`.

    `stderr` is where its log goes, as in `subprocess.Popen`. By default a thread reads it: messages of native code wait
    for a reader.
    """

    def __init__(self, name: str, *flags: str, through: list[str] | None = None, stderr: IO[bytes] | int | None = None) -> None:
        self._log: list[str] = []
        self._reader: threading.Thread | None = None
        read, write = os.pipe() if stderr is None else (-1, -1)
        self.process = subprocess.Popen(
            [*(through or []), *command(name, *flags)],
            stdout=subprocess.PIPE,
            stderr=write if stderr is None else stderr,
            text=True,
            stdin=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        if stderr is None:
            os.close(write)
            self._reader = threading.Thread(target=self._read, args=(read,), daemon=True)
            self._reader.start()
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (\S+:\d+)\n", line)
        if found is None:
            self.process.kill()
            raise AssertionError(f"{name} printed {line!r} and {self._ended()}")
        self.address = found[1]

    def stop(self) -> tuple[int, str]:
        """Sends SIGTERM, and returns the exit code and the log, unless it goes to a file."""
        self.process.send_signal(signal.SIGTERM)
        log = self._ended()
        return self.process.returncode, log

    def _read(self, log: int) -> None:
        with os.fdopen(log, errors="replace") as lines:
            self._log.extend(lines)

    def _ended(self) -> str:
        """Waits until the process has ended, and returns its log."""
        log = self.process.communicate(timeout=180)[1]
        if self._reader is not None:
            self._reader.join(60)
        return log or "".join(self._log)


@pytest.fixture
def dispatcher() -> Iterator[Program]:
    program = Program("pecan-dispatcher", "--listen", "127.0.0.1:0")
    yield program
    program.process.kill()
    program.process.communicate(timeout=180)


def run_command(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(name, *flags),
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_the_program(name):
    done = run_command(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: {name} ")
    assert "Examples:" in done.stdout
    assert done.stderr == ""


# Defaults that depend on the host, or that the page describes in words.
DEFAULTS_IN_WORDS = {("pecan-worker", "--max-streams"): "one per core, 2 to 16", ("pecan-worker", "--cache-compress"): "off", ("pecan-dispatcher", "--cache-shared"): "off", ("pecanctl", "--json"): "off", ("pecanctl", "--once"): "off"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_is_explained_with_its_default(name):
    listed = run_command(name, "--help").stdout.split("Flags:\n")[1].split("\nExamples:")[0]
    in_help = {}
    for text in re.split(r"\n(?= {6}--)", listed):
        flag, kind, words = re.match(r" ?(--[\w-]+)( (?:u?int|duration))?\b(.*)", " ".join(text.split())).groups()
        default = re.search(r'\(default "?([^")]*)"?\)$', words)
        zero = {" int": "0", " uint": "0", " duration": "0"}.get(kind, "none")
        in_help[flag] = DEFAULTS_IN_WORDS.get((name, flag), default[1] if default else zero)
    del in_help["--version"]
    page = (pathlib.Path(__file__).parents[2] / "docs" / "reference" / "flags.md").read_text()
    part = page.split(f"## {name}\n")[1].split("\n## ")[0]
    in_page = {flag: default.strip("`") for flag, default in re.findall(r"^\| `(--[\w-]+)` \| ([^|]+) \|", part, re.MULTILINE)}
    assert len(in_help) > 10, "could not read the flags out of --help"
    assert in_page == in_help


@pytest.mark.parametrize("name", COMMANDS)
def test_a_version_is_one_line(name):
    done = run_command(name, "--version")
    assert re.fullmatch(rf"{name} \S+ .*\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("address", ["nope", "", ":0", "http://127.0.0.1:5050"])
def test_a_worker_refuses_an_invalid_dispatcher_address(address):
    done = run_command("pecan-worker", "--dispatcher", address)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("pecan-worker: --dispatcher ")
    assert "as in --dispatcher 10.0.0.5:5050" in last


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_flag_is_named(name):
    done = run_command(name, "--colour", "blue")
    assert done.returncode == 1
    # TensorFlow's libraries may have logged lines before.
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{name}: ")
    assert "--colour" in last


def test_a_port_in_use_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = run_command("pecan-dispatcher", "--listen", address)
    assert done.returncode == 1
    assert address in done.stderr
    assert "in use" in done.stderr


def test_a_service_of_programs_serves_a_trainer_and_stops_cleanly(dispatcher):
    worker = Program("pecan-worker", "--dispatcher", dispatcher.address, "--listen", "127.0.0.1:0")
    dataset = tf.data.Dataset.range(100).map(lambda x: x * x).apply(pecan.distribute(dispatcher.address))
    assert sorted(int(x) for x in dataset) == [x * x for x in range(100)]
    status = run_command("pecanctl", "status", "--dispatcher", dispatcher.address)
    assert status.returncode == 0, status.stderr
    assert worker.address in status.stdout
    for program in (worker, dispatcher):
        code, log = program.stop()
        assert code == 0, log


def test_private_jobs_rejoin_at_a_dispatcher_that_lost_its_state(dispatcher):
    worker = Program("pecan-worker", "--dispatcher", dispatcher.address, "--listen", "127.0.0.1:0")
    again = None
    try:
        dataset = tf.data.Dataset.range(1000).map(lambda i: i * 3)
        read = dataset.apply(pecan.distribute(dispatcher.address))
        wanted = [3 * i for i in range(1000)]
        assert sorted(int(i) for i in read) == wanted
        endless = iter(tf.data.Dataset.range(1000).repeat().apply(pecan.distribute(dispatcher.address)))
        begun = [int(next(endless)) for _ in range(300)]
        shared = tf.data.Dataset.range(1000).repeat().apply(pecan.distribute(dispatcher.address, job_name="shared"))
        shared = iter(shared)
        next(shared)
        dispatcher.process.kill()
        dispatcher.process.wait()
        again = Program("pecan-dispatcher", "--listen", dispatcher.address)
        # In this pass and the next no element is repeated or lost.
        begun += [int(next(endless)) for _ in range(1700)]
        assert sorted(begun[:1000]) == sorted(begun[1000:]) == list(range(1000))
        # A shared job cannot be recreated, so its position is lost.
        with pytest.raises(tf.errors.NotFoundError, match="JOB_UNKNOWN"):
            for _ in shared:
                pass
        for _ in range(2):
            assert sorted(int(i) for i in read) == wanted
    finally:
        for program in (worker, again):
            if program is not None:
                program.process.kill()
                program.process.communicate(timeout=180)


def test_a_dispatcher_without_a_work_directory_logs_that(dispatcher):
    _, log = dispatcher.stop()
    assert "memory" in log


def test_a_worker_continues_while_nobody_reads_its_log(dispatcher):
    """It logs two lines for each stream, and 8 KiB of them fill the pipe."""
    worker = Program("pecan-worker", "--dispatcher", dispatcher.address, stderr=subprocess.PIPE)
    try:
        fcntl.fcntl(worker.process.stderr, fcntl.F_SETPIPE_SZ, 8192)
        distributed = tf.data.Dataset.range(1000).apply(pecan.distribute(dispatcher.address, streams=200))
        seen: list[int] = []
        reader = threading.Thread(target=lambda: seen.extend(map(int, distributed)), daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive(), f"only {len(seen)} of 1000 elements came"
        assert sorted(seen) == list(range(1000))
        # The lines waited for a reader of the log.
        code, log = worker.stop()
        assert code == 0
        assert all(f" stream={i} " in log for i in range(200)), log
    finally:
        worker.process.kill()
        worker.process.communicate(timeout=180)


def test_programs_continue_after_the_reader_of_their_log_has_ended():
    unread = subprocess.PIPE
    programs = [Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--log-level", "debug", stderr=unread)]
    target = programs[0].address
    try:
        programs.append(Program("pecan-worker", "--dispatcher", target, "--log-level", "debug", stderr=unread))
        for program in programs:
            program.process.stderr.close()
        distributed = tf.data.Dataset.range(100).apply(pecan.distribute(target, streams=8))
        assert sorted(map(int, distributed)) == list(range(100))
        assert [program.process.poll() for program in programs] == [None, None]
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait(180)


def test_pecanctl_reports_an_unreachable_dispatcher():
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    done = run_command("pecanctl", "status", "--dispatcher", free, "--timeout", "2s")
    assert done.returncode == 1
    assert free in done.stderr
