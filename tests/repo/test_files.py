"""Rules about files: which ones are at the top level, how long files may be, and what they may not contain."""

from __future__ import annotations

import os
import re
import runpy

import pytest
import repository

TOP_LEVEL = {
    "native",
    "service",
    "python",
    "bindings",
    "policies",
    "proto",
    "wheels",
    "tests",
    "go.mod",
    "go.sum",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "mkdocs.yml",
    "Makefile",
    "docs",
    "deploy",
    "examples",
    "benchmarks",
}
MAIN_LINES, FILE_LINES = 60, 400
CODE = (".go", ".py", ".c", ".h", ".proto", ".sh", "Makefile", ".ci/run", ".toml", ".md", ".service", ".yaml", ".yml")
# The words are written in parts, so that this file does not contain them.
HOSTS = [
    "proxy." + "golang.org",
    "sum." + "golang.org",
    "pypi" + ".org",
    "files." + "pythonhosted",
    "registry." + "npmjs",
    "deb." + "debian.org",
    "static." + "crates.io",
    "docker" + ".io",
    "ghcr" + ".io",
]
PATHS = [
    "/tmp/" + "venv",
    "/tmp/" + "brief",
    "/work/" + "main",
    "/work/" + "shared",
    "/work/" + "steering",
    "/work/." + "library",
    "/fa" + "rm/",
]
ELSEWHERE = re.compile("|".join(re.escape(word) for word in HOSTS + PATHS))
LATER = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_the_top_level_has_only_the_listed_entries():
    top = {name.split("/")[0] for name in repository.tracked()}
    unexpected = {name for name in top - TOP_LEVEL if not name.startswith(".")}
    assert not unexpected, (
        f"{sorted(unexpected)}: the top level is fixed (docs/architecture.md); find the directory where this belongs"
    )
    missing = TOP_LEVEL - top
    assert not missing, f"{sorted(missing)} is missing at the top level"


def test_there_are_no_symbolic_links():
    links = [line for line in repository.run("git", "ls-files", "-s").splitlines() if line.startswith("120000 ")]
    assert not links, f"symbolic links are not allowed: {links}"


def test_the_licence_is_apache_2():
    licence = repository.text("LICENSE")
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence


def test_every_go_package_has_a_doc_comment():
    mute = [
        package.path
        for package in repository.go_packages()
        if not package.doc and any(not repository.generated(name) for name in package.files)
    ]
    assert not mute, f"no package doc in {mute}"


def test_every_python_module_has_a_docstring():
    mute = [
        name
        for name in repository.with_suffix(".py")
        if name.startswith("python/pecan/")
        and repository.text(name).strip()
        and not repository.text(name).lstrip().startswith(('"""', "#!"))
    ]
    assert not mute, f"no module docstring in {mute}"


def test_mains_are_short():
    mains = [name for name in repository.with_suffix("main.go") if name.startswith("service/cmd/")]
    assert len(mains) >= 3, f"found the commands {mains}"
    fat = {name: lines for name in mains if (lines := repository.text(name).count("\n")) > MAIN_LINES}
    assert not fat, f"{fat}: a main reads flags, validates them and runs the service, in at most {MAIN_LINES} lines"


def long_files(texts: dict[str, str]) -> dict[str, int]:
    """Code that people write and that has too many lines, with their numbers."""
    code = {name: text for name, text in texts.items() if name.endswith((".go", ".py", ".proto", ".c", ".h", ".sh"))}
    return {name: lines for name, text in code.items() if (lines := text.count("\n")) > FILE_LINES}


def test_files_are_short_enough():
    texts = {name: repository.text(name) for name in repository.tracked() if not repository.generated(name)}
    assert any(name.endswith("_test.go") for name in texts), "could not read the files"
    long = long_files(texts)
    assert not long, f"{long}: at most {FILE_LINES} lines, in tests too; split them by idea"


def test_a_long_file_is_detected():
    short, long = "\n" * FILE_LINES, "\n" * (FILE_LINES + 1)
    names = ["tests/e2e/test_a.py", "native/a_test.go", "proto/pecan/v1/a.proto", "native/a.c"]
    assert not long_files(dict.fromkeys(names, short)) and not long_files({"docs/a.md": long})
    assert set(long_files(dict.fromkeys(names, long))) == set(names)


def test_no_file_names_a_registry_or_this_machine():
    found = [
        f"{name}:{number}: {match[0]}"
        for name in repository.tracked()
        if not name.endswith(".sum")
        for number, line in enumerate(repository.text(name).splitlines(), start=1)
        if (match := ELSEWHERE.search(line))
    ]
    assert not found, "\n".join(found)


def test_there_are_no_unfinished_notes():
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in repository.tracked()
        if name.endswith(CODE)
        for number, line in enumerate(repository.text(name).splitlines(), start=1)
        if LATER.search(line)
    ]
    assert not found, "\n".join(found)


def test_packages_have_no_init_functions():
    found = [
        name
        for name in repository.hand_written_go()
        if re.search(r"^func init\(\)", repository.text(name), re.MULTILINE)
    ]
    assert not found, f"{found}: no init functions; connect parts in main"


def test_only_mains_end_the_process():
    ending = re.compile(r"\blog\.Fatal|\bos\.Exit\(")
    # The part of main that all commands share.
    common = "service/internal/cli/cli.go"
    found = [
        name
        for name in repository.hand_written_go()
        if name != common
        and ending.search(repository.text(name))
        and not re.search(r"^package main$", repository.text(name), re.MULTILINE)
        and not name.endswith("_test.go")
    ]
    assert not found, f"{found}: return an error; only main ends the process"


def test_go_mod_replaces_nothing():
    assert not re.search(r"^\s*replace\b", repository.text("go.mod"), re.MULTILINE)


def test_the_package_prints_nothing():
    found = [
        f"{name}:{number}"
        for name in repository.with_suffix(".py")
        if name.startswith("python/pecan/") and not name.endswith("__main__.py")
        for number, line in enumerate(repository.text(name).splitlines(), start=1)
        if re.match(r"\s*print\(", line)
    ]
    assert not found, f"{found}: a library warns through warnings and logging"


@pytest.mark.parametrize("name", [name for name in repository.with_suffix(".md")])
def test_links_between_documents_resolve(name):
    here = os.path.dirname(name)
    lost = [
        target
        for target in LINK.findall(repository.text(name))
        if "://" not in target and not target.startswith("mailto:") and not (repository.ROOT / here / target).exists()
    ]
    assert not lost, f"{name} links to {lost}"


def test_the_changelog_of_a_release_is_one_screen():
    releases = repository.text("CHANGELOG.md").split("\n## ")[1:]
    assert releases, "could not read the releases from CHANGELOG.md"
    long = [release.partition("\n")[0] for release in releases if release.rstrip().count("\n") > 40]
    assert not long, f"{long}: a release has at most 40 lines; say what a user gets, and link to the guide that says how"
    wide = [line for line in repository.text("CHANGELOG.md").splitlines() if len(line) > 110]
    assert not wide, f"lines of more than 110 columns in CHANGELOG.md: {wide}"


def test_every_diagram_matches_its_source():
    drawing = runpy.run_path(str(repository.ROOT / "docs/diagrams/draw.py"))
    sources = [name for name in repository.tracked() if name.endswith(".dot")]
    assert sources, "no diagram in docs/diagrams"
    stale = [name for name in sources if drawing["mark"](repository.ROOT / name) not in repository.text(name[:-4] + ".svg")]
    assert not stale, f"{stale} changed: run make diagrams and commit the result"


def test_commands_of_the_readme_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z][\w-]*):", repository.text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", repository.text("README.md"), re.MULTILINE))
    assert {"demo", "test"} <= named, "the README names the demo command and the test command"
    assert named <= targets, f"{sorted(named - targets)} is named in the README and not in the Makefile"
    assert {"help", "demo", "test", "lint", "generate", "wheel", "bench"} <= targets


def test_ci_calls_the_test_command_of_the_readme():
    assert re.search(r"\bmake test\b", repository.text(".ci/run"))
    assert os.access(repository.ROOT / ".ci/run", os.X_OK)
