"""Sentences of pages, doc strings and comments in Go have at most 25 words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import repository

MOST = 25
# Pages of tables: of measurements, of runs with their times, and a generated one.
NO_PROSE = ("docs/benchmarks/", "docs/track-record.md", "docs/packages.md")
# Files that still have a long sentence.
KEPT = ()
# A full stop after one of these ends no sentence.
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|cf|vs|al|approx|No)\.")


def sentences(prose: str) -> Iterator[str]:
    """The sentences of a paragraph. Code counts as one word, and a link as its text."""
    prose = re.sub(r"`[^`]+`", "code", prose)
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    prose = re.sub(r"https?://\S+", "address", prose)
    prose = ABBREVIATIONS.sub(lambda m: m[0].replace(".", ""), prose)
    yield from re.split(r"(?<=[.!?:;])[\"')*_]*\s+", prose)


def words(sentence: str) -> int:
    """The number of words. A sign alone is none."""
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def long_sentences(paragraphs: list[str]) -> list[str]:
    """The sentences that are too long."""
    return [s for p in paragraphs for s in sentences(p) if words(s) > MOST]


def blocks(lines: list[str]) -> list[str]:
    """Joins lines into paragraphs. An empty line, a list item, an indented line, a heading or a row of a table ends one."""
    found, open_ = [], False
    for line in lines:
        stripped = line.strip()
        item = re.match(r"(?:[-*+]|\d+\.) |#+ |>|\|", stripped)
        if not stripped or stripped.startswith(("|", "#")):
            open_ = False
            found += stripped.split("|") if stripped.startswith("|") else []
        elif open_ and not item:
            found[-1] += " " + stripped
        else:
            found.append(stripped)
            open_ = True
    return found


def page_prose(page: str) -> list[str]:
    """The paragraphs, items and cells of a page without its code."""
    return blocks(re.sub(r"^( *)(```|~~~).*?^\1\2", "", page, flags=re.MULTILINE | re.DOTALL).splitlines())


def go_prose(source: str) -> list[str]:
    """The paragraphs of the comments in Go. Indented lines are code or tables."""
    lines: list[str] = []
    for line in source.splitlines():
        comment = re.match(r"\s*// ?(.*)", line)
        code = comment is None or re.match(r"\t|  +|go:|nolint", comment[1])
        lines.append("" if code else comment[1])
    return blocks(lines)


def python_prose(source: str) -> list[str]:
    """The paragraphs of the doc strings. Doctests and code are left out."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = re.sub(r"^ *```.*?^ *```", "", ast.get_docstring(node) or "", flags=re.MULTILINE | re.DOTALL)
            found += blocks(["" if line.lstrip().startswith((">>>", "...")) else line for line in text.splitlines()])
    return found


def all_prose() -> Iterator[tuple[str, list[str]]]:
    """Each file with its paragraphs."""
    for name in repository.with_suffix(".md"):
        if not name.startswith(NO_PROSE):
            yield name, page_prose(repository.text(name))
    for name in repository.hand_written_go():
        yield name, go_prose(repository.text(name))
    for name in repository.with_suffix(".py"):
        if not repository.generated(name):
            yield name, python_prose(repository.text(name))


def test_sentences_are_short():
    long = [f"{name}: {words(s)} words: {s}" for name, paragraphs in all_prose() if name not in KEPT for s in long_sentences(paragraphs)]
    assert not long, f"sentences of more than {MOST} words:\n" + "\n".join(long)


def test_a_long_sentence_is_detected():
    long = "word " * MOST + "word."
    for prose in (page_prose(f"# Title\n\n- {long}\n"), page_prose(f"| a | {long} |\n"), go_prose(f"// A b.\n// {long}\n"), python_prose(f'"""{long}"""\n')):
        assert len(long_sentences(prose)) == 1, prose
    half = "word " * (MOST // 2)
    for short in (f"{half}.\n{half}.", f"- {half}\n- {half}\n- {half}", f"```\n{long}\n```", f"`{long}` {half}", f"{half}: {half}", f"[{half}](a b) {half}"):
        assert not long_sentences(page_prose(short)), short
    assert not long_sentences(go_prose(f"//\t{long}\ncode // {long}\n"))
    assert len(long_sentences(page_prose(f"{half}, e.g. {half} {half}."))) == 1
