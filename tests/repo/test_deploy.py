"""What can be checked of deploy/ without containers and clouds: the container file, the scripts and the examples."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
import repository

CONTAINER_FILE = "deploy/containers/Containerfile"
SCRIPTS = [name for name in repository.with_suffix(".sh") if name.startswith("deploy/")]


def instructions() -> list[tuple[str, str]]:
    """Instruction and its arguments, for each one of the container file."""
    joined = re.sub(r"\\\n", " ", repository.text(CONTAINER_FILE))
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Name of a stage → its instructions."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            name = re.fullmatch(r"\S+ AS (\w+)", rest)[1]
            found[name] = []
        elif name:
            found[name].append((word, rest))
    return found


def copied(stage: str) -> list[str]:
    """Paths of the repository that a stage copies."""
    rests = [rest for word, rest in stages()[stage] if word == "COPY" and not rest.startswith("--from=")]
    return [source for rest in rests for source in rest.split()[:-1]]


def test_the_container_file_has_an_image_for_each_program():
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "ENV"}
    assert {word for word, _ in instructions()} <= known
    assert {"dispatcher", "worker", "client"} <= stages().keys()
    for stage, parts in stages().items():
        for word, rest in parts:
            source = re.match(r"--from=(\w+) ", rest)
            assert word != "COPY" or source is None or source[1] in stages(), f"{stage} copies from an unknown stage: {rest}"
    for image in ("dispatcher", "worker", "client"):
        words = dict(stages()[image])
        assert words["USER"] == "10001:10001", f"{image} would run as root"
        assert words["ENTRYPOINT"].startswith("["), f"{image}: a shell would keep signals from the program"


def test_paths_that_the_container_file_copies_exist_and_are_sent_to_the_builder():
    ignored = repository.text(CONTAINER_FILE + ".dockerignore").splitlines()
    assert "*" in ignored, "the builder gets the whole working directory"
    for stage in stages():
        for path in copied(stage):
            assert any(name == path or name.startswith(path.rstrip("/") + "/") for name in repository.tracked()), f"{path} is missing"
            assert "!" + path.rstrip("/") in ignored, f"{path} is not sent to the builder"


def test_the_container_file_uses_the_versions_of_the_repository():
    arguments = dict(rest.split("=") for word, rest in instructions() if word == "ARG" and "=" in rest)
    assert f"go {arguments['GO']}." in repository.text("go.mod")
    assert f"tensorflow-cpu=={arguments['TENSORFLOW']}\n" in repository.text("tests/requirements.txt")
    requires = re.search(r'requires-python = ">=3\.(\d+)"', repository.text("pyproject.toml"))[1]
    assert int(arguments["PYTHON"].split(".")[1]) >= int(requires)
    chart = repository.text("deploy/helm/pecan/Chart.yaml")
    version = re.search(r'^VERSION = "(.+)"$', repository.text("python/pecan/_src/version.py"), re.MULTILINE)[1]
    assert f'appVersion: "{version}"' in chart
    assert f"\n  tag: {version}\n" in repository.text("deploy/helm/pecan/values.yaml")


def copy_tree(stage: str, target) -> None:
    """Copies the tracked files that a stage copies."""
    for name in repository.tracked():
        if any(name == path or name.startswith(path.rstrip("/") + "/") for path in copied(stage)):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository.ROOT / name, target / name)


def test_the_dispatcher_builds_from_the_copied_files(tmp_path):
    if shutil.which("go") is None:
        pytest.skip("there is no go")
    copy_tree("static", tmp_path)
    command = next(rest for word, rest in stages()["static"] if word == "RUN" and "go build" in rest)
    command = command.replace("/out/", f"{tmp_path}/out/")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=600)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"pecan-dispatcher", "pecanctl"}


def test_the_wheel_gets_every_package_that_it_is_built_from():
    roots = {path.rstrip("/") for path in copied("wheel")}
    packages = {p.path: p.ours for p in repository.go_packages()}
    needed = {p for p in packages if p.startswith(("service/cmd/", "bindings"))}
    while True:
        more = {q for p in needed for q in packages[p] if q in packages} - needed
        if not more:
            break
        needed |= more
    assert {p.split("/")[0] for p in needed} <= roots
    assert {"setup.py", "pyproject.toml", "python", "wheels"} <= roots


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_correct_and_explain_themselves(name):
    path = repository.ROOT / name
    subprocess.run(["bash", "-n", path], check=True)
    if not name.endswith("start.sh"):
        done = subprocess.run(["bash", path], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "usage: " in done.stderr, done.stderr
        assert os.access(path, os.X_OK)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", path], check=True)
    for named in re.findall(r"deploy/[\w./-]+\.\w+", repository.text(name)):
        assert (repository.ROOT / named).exists(), f"{name} names {named}"


def test_the_tpu_script_checks_what_it_gets(tmp_path):
    script = repository.ROOT / "deploy/tpu/create.sh"

    def refusal(*arguments: str) -> str:
        done = subprocess.run(["bash", script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr

    wheel = tmp_path / "pecan-0.1.0-cp312-cp312-linux_x86_64.whl"
    assert "give HOST:PORT" in refusal("vm", "10.0.0.9", str(wheel))
    assert "run make wheel" in refusal("vm", "10.0.0.9:5050", str(wheel))
    pure = tmp_path / "pecan-0.1.0-py3-none-any.whl"
    pure.touch()
    assert "for no version of CPython" in refusal("vm", "10.0.0.9:5050", str(pure))
    if shutil.which("gcloud") is None:
        wheel.touch()
        assert "install the Google Cloud CLI" in refusal("vm", "10.0.0.9:5050", str(wheel))


def test_commands_of_the_readme_name_files_that_exist():
    page = repository.text("deploy/README.md")
    named = set(re.findall(r"deploy/[\w./-]+\w", page))
    assert {"deploy/helm/pecan", CONTAINER_FILE, "deploy/examples/job.yaml"} <= named
    missing = [name for name in named if not (repository.ROOT / name).exists()]
    assert not missing, f"deploy/README.md names {missing}"
    for task in ("create", "status", "upgrade", "remove"):
        assert re.search(rf"^\| {task} \| `[^`|]+` \|$", page, re.MULTILINE), f"{task} is not one command"
