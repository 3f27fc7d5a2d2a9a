"""A bucket of an emulated S3 that s3fs mounts once for each of two workers.

It needs root and Debian's package s3fs. A script makes the mounts in namespaces of its own (`around`), so that nothing of them stays.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import namespaces
import s3_emulator


def missing() -> str:
    """Why no bucket can be mounted here; empty if one can."""
    why = namespaces.missing(("s3fs", "unshare"), "s3fs util-linux")
    return why or ("" if pathlib.Path("/dev/fuse").exists() else "there is no /dev/fuse")


def around(script: str, *arguments: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    """The command that runs a script in namespaces of its own, whose mounts and processes end with it."""
    return [*namespaces.COMMAND, sys.executable, script, *arguments]


class Mounts:
    """Two mounts of a bucket. Pecan's directory in both is the same one."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.bucket = s3_emulator.Emulator()
        self.password = directory / "password"
        self.password.write_text("key:secret")
        self.password.chmod(0o600)
        self.points = [directory / f"mount-{worker}" for worker in (1, 2)]
        self.caches = [point / "segments" for point in self.points]
        self.processes: dict[pathlib.Path, subprocess.Popen] = {}
        for point in self.points:
            point.mkdir()
            self.mount(point)
        self.caches[0].mkdir(mode=0o700)

    def mount(self, point: pathlib.Path) -> None:
        options = f"url={self.bucket.url},use_path_request_style,passwd_file={self.password},nomultipart"
        self.processes[point] = subprocess.Popen(["s3fs", s3_emulator.BUCKET, point, "-f", "-o", options])
        deadline = time.monotonic() + 60
        while not os.path.ismount(point):
            assert time.monotonic() < deadline and self.processes[point].poll() is None, "s3fs does not mount"
            time.sleep(0.05)

    def kill_all(self) -> None:
        """Kills the mounts. Calls below them fail with ENOTCONN until `remount_all`."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def remount_all(self) -> None:
        self.unmount()
        for point in self.points:
            self.mount(point)

    def unmount(self) -> None:
        self.kill_all()
        for point in self.points:
            subprocess.run(["umount", "--lazy", point], check=True)

    def close(self) -> None:
        self.unmount()
        self.bucket.close()
