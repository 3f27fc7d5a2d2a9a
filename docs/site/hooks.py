"""Hooks of the generator of the documentation site (mkdocs.yml).

They add pages from outside of docs/, run the notebooks, and convert links between files to links between pages.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import re
import tempfile

import nbclient
import nbconvert
import nbformat
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Page of the repository outside of docs/ → page of the site.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "deploy/README.md": "deploy.md",
    "benchmarks/README.md": "benchmarks/running.md",
    "examples/photographs/README.md": "demo.md",
    "tests/faults/README.md": "fault-tests.md",
    "examples/notebooks/photographs.ipynb": "notebooks/photographs.md",
    "examples/notebooks/tuning.ipynb": "notebooks/tuning.md",
}
# Documents that the site leaves out. A link to one of them, or to source code, becomes its text.
WITHOUT_PAGE = ("deploy/tpu/README.md",)
CODE = (".go", ".py")
# A cell that takes longer than this fails the build.
CELL_TIMEOUT_S = 120
LINK = re.compile(r"(?P<open>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Assets that a browser would load from another host.
REMOTE = re.compile(r"""<(?:script|img|iframe|source)[^>]+src=["']?(?:https?:)?//|<link[^>]+rel=["']?stylesheet[^>]+href=["']?(?:https?:)?//""")


def on_files(files, config):
    """Adds the pages from outside of docs/."""
    for source, page in OUTSIDE.items():
        content = notebook(ROOT / source) if source.endswith(".ipynb") else (ROOT / source).read_text()
        files.append(File.generated(config, page, content=content))
    return files


def notebook(path: pathlib.Path) -> str:
    """Runs a notebook in an empty directory and returns it with its results as Markdown.

    PECAN_DOCS_RUN_NOTEBOOKS=0 omits the results, for work on other pages.
    """
    document = nbformat.read(path, as_version=4)
    if os.environ.get("PECAN_DOCS_RUN_NOTEBOOKS") == "0":
        return nbconvert.MarkdownExporter().from_notebook_node(document)[0]
    with tempfile.TemporaryDirectory(prefix="pecan-notebook-") as directory:
        client = nbclient.NotebookClient(document, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": directory}})
        try:
            client.execute()
        except nbclient.exceptions.CellExecutionError as error:
            raise PluginError(f"{path.name}: {error}") from error
    body, resources = nbconvert.MarkdownExporter().from_notebook_node(document)
    if resources.get("outputs"):
        raise PluginError(f"{path.name} has images among its results, which the site does not support")
    return body


def on_page_markdown(markdown, page, config, files):
    """Converts links between files of the repository to links between pages of the site."""
    here = page.file.src_uri
    source = next((name for name, to in OUTSIDE.items() if to == here), f"docs/{here}")
    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [LINK.sub(lambda m: link(m, source, here), markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*pieces, LINK.sub(lambda m: link(m, source, here), markdown[end:])])


def link(match: re.Match, source: str, here: str) -> str:
    """Returns the link between pages, or only its text if the target is code or has no page on purpose."""
    target, anchor = match["target"], match["anchor"] or ""
    if not target or "://" in target or target.startswith("mailto:"):
        return match.group()
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if place in OUTSIDE:
        to = OUTSIDE[place]
    elif place.startswith("docs/") and not place.endswith(".json"):
        to = place.removeprefix("docs/")
    elif place in WITHOUT_PAGE or (place.endswith(CODE) and (ROOT / place).exists()):
        return match["open"].strip("![]")
    elif (ROOT / place).exists():
        raise PluginError(f"{source} links to {place}, which has no page: add it to OUTSIDE or to WITHOUT_PAGE")
    else:
        return match.group()
    return f"{match['open']}({posixpath.relpath(to, posixpath.dirname(here) or '.')}{anchor})"


def on_post_page(output, page, config):
    """Fails for a page that loads an asset from another host."""
    found = REMOTE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads an asset from another host: {found.group()}")
    return output
