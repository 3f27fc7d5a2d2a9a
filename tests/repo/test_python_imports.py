"""The import rules between the modules of python/pecan. A broken rule says why it exists."""

from __future__ import annotations

import ast
import re

import pytest
import repository

# Sub-package of python/pecan/_src → sub-packages that it may import. All may import the modules in _src itself.
PYTHON_LAYERS = {
    "client": (),
    "servers": ("client",),
    "dataset": ("client", "servers"),
    "explain": ("client", "servers", "dataset"),
}


def python_imports(name: str) -> list[str]:
    """Modules that a Python file imports at any depth. Relative imports start with a dot."""
    found = []
    for node in ast.walk(ast.parse(repository.text(name), name)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    return found


def broken_python_rules(name: str, imports: list[str]) -> list[str]:
    """A sentence for every import of a Python file that breaks a rule."""
    package = name.startswith("python/pecan/")
    tests = (name.startswith("python/") and not package) or name.startswith("tests/")
    private = name.startswith("python/pecan/_src/")
    sentences = []
    for imported in imports:
        if package and imported.startswith("."):
            sentences.append(f"{name} imports {imported}: imports inside the package are absolute")
        to_private = imported == "pecan._src" or imported.startswith("pecan._src.")
        if to_private and not (package or tests):
            sentences.append(f"{name} imports {imported}: only the package uses _src, so that _src can change")
        if private and imported.split(".")[0] == "pecan" and not to_private:
            sentences.append(f"{name} imports {imported}: the public API imports _src, and _src does not import it")
        layer, target = (re.sub(r"^(python/)?pecan[/.]_src[/.]?", "", path).split(sep)[0] for path, sep in ((name, "/"), (imported, ".")))
        if private and to_private and target in PYTHON_LAYERS and target not in (layer, *PYTHON_LAYERS.get(layer, ())):
            sentences.append(f"{name} imports {imported}: {layer} may import {PYTHON_LAYERS.get(layer, ())} of _src")
    return sentences


def test_python_modules_follow_the_import_rules():
    broken = [s for name in repository.with_suffix(".py") for s in broken_python_rules(name, python_imports(name))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("examples/photographs/demo.py", "pecan._src.client"),
        ("python/pecan/_src/client.py", "pecan.distribute"),
        ("python/pecan/options.py", "._src"),
        ("python/pecan/_src/client/session.py", "pecan._src.servers.server"),
        ("python/pecan/_src/options.py", "pecan._src.client"),
    ],
)
def test_a_broken_python_import_rule_is_detected(name, imported):
    assert broken_python_rules(name, [imported])


def defined_names(text: str) -> set[str]:
    """The names that the statements of a Python module bind."""
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name for alias in node.names}
        else:
            found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return found


def missing_names(name: str, modules: dict[str, set[str]]) -> list[str]:
    """A sentence for every name that a test file imports from a module of the tests that does not define it."""
    return [
        f"{name} imports {alias.name}, which {node.module} does not define"
        for node in ast.walk(ast.parse(repository.text(name), name))
        if isinstance(node, ast.ImportFrom) and node.module in modules
        for alias in node.names
        if alias.name not in modules[node.module]
    ]


def test_test_modules_define_what_others_import_from_them():
    tests = [name for name in repository.with_suffix(".py") if name.startswith("tests/")]
    modules: dict[str, set[str]] = {}
    for name in tests:
        # Directories may have files of one name, as conftest.py.
        modules.setdefault(name.rpartition("/")[2].removesuffix(".py"), set()).update(defined_names(repository.text(name)))
    missing = [sentence for name in tests for sentence in missing_names(name, modules)]
    assert not missing, "\n".join(missing)
    assert missing_names("tests/e2e/test_local_workers.py", {"test_placement": {"WINDOW", "Trainer"}})
