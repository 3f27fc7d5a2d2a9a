"""The Python blocks of the first pages and of every guide run unchanged. Each page runs in a process of its own, which has TensorFlow imported."""

from __future__ import annotations

import pathlib

import pytest
from script import Script

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", ROOT / "docs/get-started.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
RUN = f"""
import pathlib
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import run_page
run_page.run(*map(pathlib.Path, sys.argv[1:]))
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "\n```python\n" in page.read_text(), f"{page.name} has no code that runs"
    with Script(RUN, str(page), str(tmp_path)) as script:
        code, out, err = script.rest(timeout=180)
    assert code == 0, out[-3000:] + err[-6000:]
