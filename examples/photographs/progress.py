"""Shows progress: one changing line on a terminal, or one line per tenth in a log."""

from __future__ import annotations

import sys


class Line:
    """The progress of one task, from 0 to 1."""

    def __init__(self) -> None:
        self._tenth = -1

    def show(self, share: float, text: str) -> None:
        """Shows the finished share and a text. The share 1 ends the line."""
        if sys.stdout.isatty():
            filled = int(30 * share)
            end = "\n" if share >= 1 else ""
            print(f"\r  [{'#' * filled}{'.' * (30 - filled)}] {text}\033[K", end=end, flush=True)
        elif int(share * 10) > self._tenth:
            self._tenth = int(share * 10)
            print(f"  {share:4.0%} {text}", flush=True)
