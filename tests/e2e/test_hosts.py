"""A trainer and a worker on two hosts. The hosts are network namespaces, and the tests set the speed of the link.

Each namespace has its own host id, like a host, so elements cannot go through shared memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from script import Script
from test_commands import Program

TRAINER, WORKER = "10.213.77.1", "10.213.77.2"
COUNT, SIZE = 48, 1 << 20
# On a link this slow compression is faster on any machine, and the tests still end soon.
SLOW = ["tbf", "rate", "100mbit", "burst", "256kb", "latency", "50ms"]


class Hosts:
    """Two namespaces, a link, and a service whose worker runs in the second namespace."""

    def __init__(self) -> None:
        self.names = [f"pecan-{os.getpid()}-{which}" for which in ("trainer", "worker")]
        self.programs: list[Program] = []

    def build(self) -> None:
        for name in self.names:
            run("ip", "netns", "add", name)
        links = [f"pecan{which}" for which in "tw"]
        run("ip", "-n", self.names[0], "link", "add", links[0], "type", "veth", "peer", links[1], "netns", self.names[1])
        for name, link, address in zip(self.names, links, (TRAINER, WORKER)):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", link)
            run("ip", "-n", name, "link", "set", link, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run(*self.inside(name), "tc", "qdisc", "add", "dev", link, "root", *SLOW)
            # The loopback is as slow as the link, so that speed does not decide about compression there.
            run(*self.inside(name), "tc", "qdisc", "add", "dev", "lo", "root", *SLOW)

    def serve(self) -> str:
        """Starts the service, and returns its address."""
        dispatcher = self.start(0, "pecan-dispatcher", "--listen", f"{TRAINER}:0")
        self.start(
            1, "pecan-worker", "--dispatcher", dispatcher.address, "--listen", "0.0.0.0:5051",
            "--advertise", f"{WORKER}:5051",
        )  # fmt: skip
        return dispatcher.address

    def start(self, host: int, *command: str) -> Program:
        program = Program(*command, through=self.inside(self.names[host]))
        self.programs.append(program)
        return program

    @staticmethod
    def inside(name: str) -> list[str]:
        return ["ip", "netns", "exec", name]

    def read(self, host: int, address: str, make: str, **options: object) -> tuple[int, int]:
        """Reads a dataset on a host. Returns the bytes received over the link and over the loopback."""
        with Script(
            f"""
            def received():
                lines = [line.split() for line in open("/proc/net/dev") if ":" in line]
                return [sum(int(line[1]) for line in lines if (line[0] == "lo:") == lo) for lo in (False, True)]
            dataset = D.range({COUNT}).map(lambda i: {make})
            ours = dataset.apply(pecan.distribute({address!r}, deterministic=True, **{options!r}))
            before = received()
            seen = [(int(element[0]), int(tf.size(element))) for element in ours]
            if {make!r}.startswith("tf.fill"):
                assert seen == [(i, {SIZE}) for i in range({COUNT})], seen
            assert not any("pecan-slot" in line for line in open("/proc/self/maps"))
            say(*[after - before for before, after in zip(before, received())])
            """,
            network=self.names[host],
        ) as script:
            link, loopback = script.line().split()
            assert script.rest()[0] == 0
            return int(link), int(loopback)

    def remove(self) -> None:
        for program in self.programs:
            program.process.kill()
            program.process.communicate(timeout=180)
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=180)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)


@pytest.fixture(scope="module")
def hosts():
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no `{tool}` here: install iproute2")
    hosts = Hosts()
    try:
        try:
            hosts.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {' '.join(error.cmd)}: {error.stderr.strip()}")
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture(scope="module")
def service(hosts):
    return hosts.serve()


# Equal bytes, and bytes that cannot be compressed.
COMPRESSIBLE = f"tf.fill([{SIZE}], tf.cast(i, tf.uint8))"
INCOMPRESSIBLE = f"tf.cast(tf.random.stateless_uniform([{SIZE}], [i, 1], 0, 256, tf.int32), tf.uint8)"


def test_auto_compresses_between_hosts_on_a_slow_link(hosts, service):
    link, _ = hosts.read(0, service, COMPRESSIBLE)
    assert link < COUNT * SIZE / 2


def test_auto_does_not_compress_incompressible_elements(hosts, service):
    link, _ = hosts.read(0, service, INCOMPRESSIBLE)
    assert link > COUNT * SIZE


def test_none_never_compresses(hosts, service):
    link, _ = hosts.read(0, service, COMPRESSIBLE, compression=None)
    assert link > COUNT * SIZE


def test_auto_does_not_compress_on_one_host(hosts, service):
    link, loopback = hosts.read(1, service, COMPRESSIBLE, data_transfer_protocol="tcp")
    assert loopback > COUNT * SIZE
    assert link < SIZE
