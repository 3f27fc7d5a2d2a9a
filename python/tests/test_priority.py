"""Lower priority for child processes, as the kernel shows it."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from pecan._src.servers import priority


@contextlib.contextmanager
def child(*, session: bool) -> Iterator[int]:
    """The id of a child process that sleeps."""
    process = subprocess.Popen(["sleep", "100"], start_new_session=session, process_group=None if session else 0)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def of_session(pid: int | str) -> int:
    """The nice value of a session. Skips the test where sessions have none."""
    file = pathlib.Path(f"/proc/{pid}/autogroup")
    words = file.read_text().split() if file.exists() else []
    if not words:
        pytest.skip("this kernel does not divide the processors among sessions")
    return int(words[-1])


def test_the_nice_value_of_a_child_is_raised():
    with child(session=True) as pid:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        priority.lower(pid, 7)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + 7, 19)


def test_the_nice_value_of_a_childs_session_is_raised():
    """Beside the sessions of other processes, the nice value of a process alone has no effect."""
    own = of_session("self")
    with child(session=True) as pid:
        priority.lower(pid, 7)
        assert of_session(pid) == min(own + 7, 19)


def test_the_session_of_this_process_keeps_its_nice_value():
    own = of_session("self")
    with child(session=False) as pid:
        priority.lower(pid, 7)
        assert of_session("self") == own


@contextlib.contextmanager
def group_of_this_process() -> Iterator[pathlib.Path]:
    """The group of the local workers of this process. Skips the test where this process may not have one."""
    try:
        group = priority._group()
    except OSError as error:
        pytest.skip(f"this process may have no control group with a lower weight: {error}")
    try:
        yield group
    finally:
        priority.remove_groups()
        assert not group.exists()


def test_a_child_joins_a_group_with_a_tenth_of_the_usual_weight():
    with group_of_this_process() as group, child(session=True) as pid:
        weights = [group / "cpu.shares", group / "cpu.weight"]
        assert [each.read_text().strip() for each in weights if each.exists()] in (["102"], ["10"])
        priority.lower(pid, 7)
        assert str(pid) in (group / "cgroup.procs").read_text().split()


SPIN = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
while True:
    pass
"""


def used(pid: int) -> float:
    """The processor time of a process in seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_group_gets_little_of_a_processor_beside_others():
    """Two processes of equal nice values compute on one processor, each in its own session."""
    spin = [sys.executable, "-c", SPIN]
    with (
        group_of_this_process() as group,
        subprocess.Popen(spin, start_new_session=True) as usual,
        subprocess.Popen(spin, start_new_session=True) as lowered,
    ):
        try:
            (group / "cgroup.procs").write_text(str(lowered.pid))
            before, end = None, time.monotonic() + 60
            while before is None or used(usual.pid) - before[0] < 1:
                assert time.monotonic() < end, "this host is too busy for a second of a processor in 60 s"
                time.sleep(0.1)
                if before is None and min(used(usual.pid), used(lowered.pid)) > 0:
                    before = used(usual.pid), used(lowered.pid)
            assert used(lowered.pid) - before[1] < 0.4
        finally:
            usual.kill()
            lowered.kill()


def test_groups_of_dead_processes_are_removed():
    with child(session=True) as pid:
        pass
    with group_of_this_process() as group:
        left = group.with_name(f"pecan-local-workers-{pid}")
        left.mkdir()
        priority._owners.clear()
        assert priority._group() == group
        assert not left.exists()


# Each value has four parts: the groups of this process, the mounts of control groups below a directory, the directory
# of the own group there, and the file with the weight of a child.
VERSIONS = {
    "version 2": ("0::/team/job", "1 1 0:1 / {}/all rw - cgroup2 cgroup2 rw", "all/team/job", "cpu.weight"),
    "version 2 in a container that shows its part": (
        "0::/team/job",
        "1 1 0:1 /team {}/part rw,nosuid shared:9 - cgroup2 cgroup rw,nsdelegate",
        "part/job",
        "cpu.weight",
    ),
    "version 1": (
        "4:memory:/other\n3:cpu,cpuacct:/team/job\n0::/",
        "1 1 0:1 / {0}/memory rw - cgroup cgroup rw,memory\n2 1 0:2 / {0}/all rw - cgroup cgroup rw,cpu,cpuacct\n"
        "3 1 0:3 / {0}/unified rw - cgroup2 cgroup2 rw",
        "all/team/job",
        "cpu.shares",
    ),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_the_files_of_both_versions(name, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """As the kernel would have them for a trainer that is in a group with other processes."""
    groups, mounts, own, weight = VERSIONS[name]
    (tmp_path / "cgroup").write_text(groups + "\n")
    (tmp_path / "mountinfo").write_text("9 1 0:9 / /tmp rw - tmpfs tmpfs rw\n" + mounts.format(tmp_path) + "\n")
    group = tmp_path / own / f"pecan-local-workers-{os.getpid()}"
    group.mkdir(parents=True)
    (tmp_path / own / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / own / "cgroup.subtree_control").write_text("\n")
    (group / "cgroup.type").write_text("domain invalid\n")
    monkeypatch.setattr(priority, "_PROCESS", tmp_path)
    monkeypatch.setattr(priority, "_owners", {})
    with child(session=True) as pid:
        priority.lower(pid, 7)
        assert (group / "cgroup.procs").read_text() == str(pid)
    assert (group / weight).read_text() == {"cpu.weight": "10", "cpu.shares": "102"}[weight]
    second = weight == "cpu.weight"
    assert (tmp_path / own / "cgroup.subtree_control").read_text().strip() == ("+cpu" if second else "")
    assert (group / "cgroup.type").read_text().strip() == ("threaded" if second else "domain invalid")


# Moves itself into the group, and a child into a child of it. The controller of processors may belong to version 1
# here. A threaded sibling, in its place, makes the group one whose children must be threaded.
ADMITTED = """
import os, pathlib, subprocess, sys
from pecan._src.servers import priority
own = pathlib.Path(sys.argv[1])
(own / "cgroup.procs").write_text(str(os.getpid()))
(own / "sibling").mkdir()
(own / "sibling" / "cgroup.type").write_text("threaded")
group = own / "workers"
group.mkdir()
child = subprocess.Popen(["sleep", "100"])
try:
    (group / "cgroup.procs").write_text(str(child.pid))
    print("the child moved at once")
except OSError:
    priority._admit(group)
    (group / "cgroup.procs").write_text(str(child.pid))
    print(pathlib.Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()[-1])
finally:
    child.kill()
    child.wait()
    (own.parent / "cgroup.procs").write_text(str(os.getpid()))
    for each in (group, own / "sibling", own):
        each.rmdir()
"""


def test_a_group_of_version_2_has_processes_beside_its_parent():
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    roots = [pathlib.Path(point) for _, point, kind, *_ in mounts if kind == "cgroup2" and os.access(point, os.W_OK)]
    if not roots:
        pytest.skip("no control groups of version 2 are writable here")
    own = roots[0] / f"pecan-test-{os.getpid()}"
    try:
        own.mkdir()
    except OSError as error:
        pytest.skip(f"this process may not make a control group: {error}")
    done = subprocess.run([sys.executable, "-c", ADMITTED, str(own)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"0::/{own.name}/workers"


def test_a_group_that_no_mount_shows_is_left_alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cgroup").write_text("0::/../elsewhere\n")
    (tmp_path / "mountinfo").write_text(f"1 1 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    monkeypatch.setattr(priority, "_PROCESS", tmp_path)
    with pytest.raises(FileNotFoundError):
        priority._group()
    with child(session=True) as pid:
        priority.lower(pid, 7)
        assert os.getpriority(os.PRIO_PROCESS, pid) > 0
