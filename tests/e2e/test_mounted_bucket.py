"""A cache in a bucket that is mounted with s3fs: each worker has a mount of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess

import bucket_mounts
import pytest

HERE = pathlib.Path(__file__).resolve().parent


def test_a_cache_in_a_mounted_bucket_changes_no_element(tmp_path):
    run(tmp_path, "forced", "automatic")


def test_a_mounted_bucket_that_fails_changes_no_element(tmp_path):
    """D14: the mounts are killed, and the bucket refuses the key."""
    log = run(tmp_path, "killed", "vanished")
    assert "a cache segment is not written; the epoch continues without it" in log


def run(tmp_path: pathlib.Path, *cases: str) -> str:
    """Runs cases of bucket_cases.py, and returns the script's log with that of its workers."""
    if why := bucket_mounts.missing():
        pytest.skip(why)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python")}
    command = bucket_mounts.around(str(HERE / "bucket_cases.py"), tmp_path, *cases)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stderr
