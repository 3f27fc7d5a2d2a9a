"""A file system in memory whose calls take as long as a test says, over the kernel's FUSE device.

As a program it serves one mount: `slow_disk.py MOUNTPOINT CONTROL`. Each call sleeps for the seconds in the file CONTROL before it
is answered. Calls do not wait for each other, as on a network file system.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import stat
import struct
import subprocess
import sys
import threading
import time

_HEADER = struct.Struct("<IIQQIIII")
_LARGEST = 1 << 20
(LOOKUP, FORGET, GETATTR, SETATTR, UNLINK, RENAME, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR,
 RELEASEDIR, FSYNCDIR, CREATE, INTERRUPT, BATCH_FORGET, RENAME2) = (
    1, 2, 3, 4, 10, 12, 14, 15, 16, 17, 18, 20, 25, 26, 27, 28, 29, 30, 35, 36, 42, 45,
)  # fmt: skip
# A file is read and written by calls, and not from the page cache.
_DIRECT = 1
_SIZE = 1 << 3


class SlowDisk:
    """A mounted file system.

    Attributes:
        path: Its root.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self._control = path, path.with_name(path.name + ".delay")
        path.mkdir()
        self.delay(0)
        self._process = subprocess.Popen([sys.executable, __file__, str(path), str(self._control)])
        # The process ends if it cannot mount.
        while self._process.poll() is None and not os.path.ismount(path):
            time.sleep(0.02)

    @property
    def mounted(self) -> bool:
        return self._process.poll() is None

    def delay(self, seconds: float) -> None:
        """Sets how long each call takes from now on."""
        fresh = self._control.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.rename(self._control)

    def unmount(self) -> None:
        self._process.kill()
        self._process.wait()
        subprocess.run(["umount", "-l", str(self.path)], check=False, stderr=subprocess.DEVNULL)


class _Disk:
    """The files. A file has the number of its inode; that of the root is 1."""

    def __init__(self, control: pathlib.Path) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._names: dict[bytes, int] = {}
        self._data: dict[int, bytearray] = {}

    def _attributes(self, node: int) -> bytes:
        mode, size = (stat.S_IFDIR | 0o700, 0) if node == 1 else (stat.S_IFREG | 0o600, len(self._data[node]))
        times = (int(time.time()),) * 3
        return struct.pack("<6Q10I", node, size, size // 512 + 1, *times, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0)

    def _entry(self, node: int) -> bytes:
        return struct.pack("<4Q2I", node, 1, 0, 0, 0, 0) + self._attributes(node)

    def serve(self, device: int) -> None:
        while True:
            try:
                request = os.read(device, _LARGEST + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                raise
            threading.Thread(target=self._answer, args=(device, request), daemon=True).start()

    def _answer(self, device: int, request: bytes) -> None:
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        if opcode != INIT:
            time.sleep(float(self._control.read_text()))
        try:
            with self._lock:
                body, failed = self._do(opcode, node, request[_HEADER.size :]), 0
        except OSError as error:
            body, failed = b"", error.errno
        os.write(device, struct.pack("<IiQ", 16 + len(body), -failed, unique) + body)

    def _do(self, opcode: int, node: int, body: bytes) -> bytes:
        """Answers a call, or raises OSError."""
        if opcode == INIT:
            return struct.pack("<4I2H2I2HI7I", 7, 31, 0, 0, 64, 48, _LARGEST, 1, 0, 0, 0, *[0] * 7)
        if opcode in (FLUSH, FSYNC, FSYNCDIR, RELEASE, RELEASEDIR):
            return b""
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", node, _DIRECT if opcode == OPEN else 0, 0)
        if opcode == STATFS:
            return struct.pack("<5Q4I6I", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0, *[0] * 6)
        if opcode in (LOOKUP, UNLINK):
            name = body[:-1]
            if name not in self._names:
                raise OSError(errno.ENOENT, name)
            return self._entry(self._names[name]) if opcode == LOOKUP else self._forget(name)
        if opcode in (GETATTR, SETATTR):
            if opcode == SETATTR and struct.unpack_from("<I", body)[0] & _SIZE:
                del self._data[node][struct.unpack_from("<Q", body, 16)[0] :]
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if opcode == CREATE:
            fresh = 2 + max(self._data, default=0)
            self._names[body[16:-1]], self._data[fresh] = fresh, bytearray()
            return self._entry(fresh) + struct.pack("<QII", fresh, _DIRECT, 0)
        if opcode == READ:
            _, at, size = struct.unpack_from("<QQI", body)
            return bytes(self._data[node][at : at + size])
        if opcode == WRITE:
            _, at, size = struct.unpack_from("<QQI", body)
            self._data[node][at : at + size] = body[40 : 40 + size]
            return struct.pack("<II", size, 0)
        if opcode in (RENAME, RENAME2):
            old, new, _ = body[8 if opcode == RENAME else 16 :].split(b"\0")
            self._names[new] = self._names.pop(old)
            return b""
        if opcode == READDIR:
            return self._list(*struct.unpack_from("<QQI", body)[1:])
        raise OSError(errno.ENOSYS, str(opcode))

    def _forget(self, name: bytes) -> bytes:
        # The data stays: the file may be open.
        del self._names[name]
        return b""

    def _list(self, first: int, most: int) -> bytes:
        listed = b""
        for number, name in enumerate(sorted(self._names)[first:], start=first + 1):
            one = struct.pack("<QQII", self._names[name], number, len(name), stat.S_IFREG >> 12) + name
            one += bytes(-len(one) % 8)
            if len(listed) + len(one) > most:
                break
            listed += one
        return listed


def main() -> None:
    path, control = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slow", path.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(f"mount {path}: {os.strerror(ctypes.get_errno())}")
    _Disk(pathlib.Path(control)).serve(device)


if __name__ == "__main__":
    main()
