"""The Python blocks of every guide run unchanged."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNNER = pathlib.Path(__file__).with_name("run_page.py")
PAGES = [ROOT / "docs/get-started.md", *sorted((ROOT / "docs/guides").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "\n```python\n" in page.read_text(), f"{page.name} has no code that runs"
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(page), str(tmp_path)], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
