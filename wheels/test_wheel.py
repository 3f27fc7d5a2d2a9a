"""Tests that the files built in place are those that a wheel contains."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent / "python" / "pecan"


def _load(name: str):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


licences = sys.modules["licences"] = _load("licences")  # check imports it by this name
check = _load("check")


pytestmark = pytest.mark.skipif(not (PACKAGE / "_bin").exists(), reason="nothing is built: run `make build`")


def test_the_package_has_one_shared_object_and_three_programs():
    assert check.problems(PACKAGE) == []


def test_a_second_go_runtime_is_reported(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "pecan")
    built = next((tmp_path / "pecan" / "_native").glob("*.so"))
    shutil.copy(built, built.with_name("_other.so"))
    assert any("one shared object" in problem for problem in check.problems(tmp_path / "pecan"))


def test_a_missing_program_is_reported(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "pecan")
    (tmp_path / "pecan" / "_bin" / "pecanctl").unlink()
    assert check.problems(tmp_path / "pecan") == ["the program pecanctl is missing"]


def test_a_missing_licence_is_reported(tmp_path):
    package = tmp_path / "pecan"
    shutil.copytree(PACKAGE, package)
    inside = licences.modules([*package.rglob("*.so"), *(package / "_bin").iterdir()])
    assert {"google.golang.org/grpc", "github.com/golang/snappy", "github.com/spf13/pflag"} <= set(inside)
    assert len(check.unnamed_modules(package)) == len(inside)
    licences.write(package / licences.INSIDE, [*package.rglob("*.so"), *(package / "_bin").iterdir()])
    assert check.unnamed_modules(package) == []
    text = (package / licences.INSIDE).read_text()
    (package / licences.INSIDE).write_text(text.replace("github.com/spf13/pflag", "another"))
    assert [problem.split()[5] for problem in check.unnamed_modules(package)] == ["github.com/spf13/pflag"]
    for phrase in ("The Go Authors", "gRPC", "Snappy", "Apache License"):
        assert phrase in text


def _program(directory: pathlib.Path, replacement: str) -> pathlib.Path:
    """Create a program with one module that is replaced."""
    directory.mkdir()
    require = f"require example.com/other v0.0.0\n\nreplace example.com/other => {replacement}\n"
    (directory / "go.mod").write_text(f"module example.com/program\n\ngo 1.24\n\n{require}")
    (directory / "main.go").write_text('package main\n\nimport _ "example.com/other"\n\nfunc main() {}\n')
    (directory / "other").mkdir()
    (directory / "other" / "go.mod").write_text("module example.com/other\n")
    (directory / "other" / "other.go").write_text("package other\n")
    # Without a network: the replacement is a module that Pecan uses, so it is in Go's cache.
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GONOSUMDB": "*", "GOWORK": "off"}
    subprocess.run(["go", "build", "-o", "program", "."], cwd=directory, env=environment, check=True, timeout=300)
    return directory / "program"


def test_the_licences_name_the_replacement_of_a_module(tmp_path):
    version = next(v for p, v in licences.modules(list((PACKAGE / "_bin").iterdir())).items() if p.endswith("/pflag"))
    program = _program(tmp_path / "program", f"github.com/spf13/pflag {version}")
    assert licences.modules([program]) == {"github.com/spf13/pflag": version}
    assert f"github.com/spf13/pflag {version}\n" in licences.gather([program])


def test_a_module_replaced_by_a_directory_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"example.com/other is replaced by the directory ./other"):
        licences.gather([_program(tmp_path / "program", "./other")])


def test_modules_that_cannot_be_downloaded_are_named(monkeypatch):
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(SystemExit) as caught:
        licences.directories({"example.com/missing": "v1.2.3", "example.com/another": "v0.0.1"})
    for words in ("cannot be downloaded", "example.com/missing@v1.2.3", "example.com/another@v0.0.1"):
        assert words in str(caught.value)


def test_the_wheel_runs_in_a_clean_environment(tmp_path):
    """Install the wheel as a new user does, with build isolation.

    It is slow and downloads TensorFlow, so it runs only with PECAN_WHEEL_TENSORFLOW=2.18.1,2.21.0.
    """
    versions = os.environ.get("PECAN_WHEEL_TENSORFLOW")
    if not versions:
        pytest.skip("PECAN_WHEEL_TENSORFLOW names no versions")
    pip = [sys.executable, "-m", "pip", "wheel", str(HERE.parent), "--no-deps", "--quiet"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path)], check=True, timeout=1200)
    wheel = next(tmp_path.glob("*.whl"))
    subprocess.run([sys.executable, str(HERE / "check.py"), str(wheel)], check=True, timeout=120)
    arguments = [argument for version in versions.split(",") for argument in ("--tensorflow", version)]
    subprocess.run([sys.executable, str(HERE / "smoke.py"), str(wheel), *arguments], check=True, timeout=2400)
