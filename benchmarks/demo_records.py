"""The demo's photographs and input pipeline (examples/photographs), for measurements."""

from __future__ import annotations

import sys
from types import ModuleType

from row import ROOT, Settings

sys.path.insert(0, str(ROOT / "examples" / "photographs"))

# The functions import the demo's modules, which need Pillow. Other rows run without it.


def files(settings: Settings) -> list[str]:
    """Returns the training files of the demo's medium size. The first call builds them."""
    import build

    return build.records("medium", settings.demo_data).training


def pipeline() -> ModuleType:
    """Returns the module with the demo's steps."""
    import pipeline as module

    return module
