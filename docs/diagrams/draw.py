"""Draws every .dot file of this folder as an .svg beside it with Graphviz, and notes in it what it was drawn from."""

from __future__ import annotations

import hashlib
import pathlib
import re
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


def mark(source: pathlib.Path) -> str:
    """The comment in a diagram that names the text that it was drawn from."""
    return f"<!-- drawn from {source.name}, SHA-256 {hashlib.sha256(source.read_bytes()).hexdigest()} -->"


def draw(source: pathlib.Path) -> None:
    """Draws one diagram."""
    done = subprocess.run(["dot", "-Tsvg", str(source)], check=True, capture_output=True, text=True, timeout=60)
    # Graphviz names its version and the graph in comments; the diagram needs neither.
    svg = re.sub(r"<!--.*?-->\n?", "", done.stdout[done.stdout.index("<svg") :], flags=re.DOTALL)
    source.with_suffix(".svg").write_text(f"{mark(source)}\n{svg}")


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.dot")):
        draw(path)
