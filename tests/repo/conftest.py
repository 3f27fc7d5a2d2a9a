"""The rules of the repository.

Each test checks one rule over the tracked files. Rules are about imports, lengths of files, terms of messages, links,
and pages that list what the code has. `repository.py` lists the files and the Go packages. The tests start no cluster and
take seconds. A failed rule says why it exists. To run one: `.venv/bin/python -m pytest tests/repo -k name`.
"""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
