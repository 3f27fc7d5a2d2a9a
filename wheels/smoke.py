"""Install a wheel of Pecan into a new virtual environment with TensorFlow only, run it, and uninstall it.

    python wheels/smoke.py dist/pecan-*.whl --tensorflow 2.18.1 --tensorflow 2.21.0
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

CHECK = """
import sys
import pecan
assert "tensorflow" not in sys.modules
import tensorflow as tf

dataset = tf.data.Dataset.range(1000).map(lambda i: {"i": i, "text": tf.as_string(i)}).batch(10)
ours = dataset.apply(pecan.distribute(deterministic=True))
assert ours.element_spec == dataset.element_spec
assert [b["i"].numpy().tolist() for b in ours] == [b["i"].numpy().tolist() for b in dataset]

with pecan.LocalCluster(workers=2) as cluster:
    ours = tf.data.Dataset.range(1000).apply(pecan.distribute(cluster.target))
    assert sorted(ours.as_numpy_iterator()) == list(range(1000))

with open("/proc/self/maps") as file:
    objects = {line.split()[-1] for line in file if ".so" in line}
go = [name for name in objects if b"\\xff Go buildinf:" in open(name, "rb").read()]
assert len(go) == 1, go
print("pecan", pecan.__version__, "with TensorFlow", tf.__version__, "in", sys.prefix)
"""


PROGRAMS = ("pecan-dispatcher", "pecan-worker", "pecanctl")


def run(wheel: pathlib.Path, tensorflow: str) -> None:
    """Test the wheel in one environment with one TensorFlow."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        venv.create(root, with_pip=True)
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")}
        variables.update(TF_CPP_MIN_LOG_LEVEL="3", PATH=f"{root / 'bin'}:/usr/bin:/bin")

        def call(*command: str, timeout: float = 900) -> str:
            return subprocess.run(
                command, check=True, cwd=root, env=variables, timeout=timeout, text=True, stdout=subprocess.PIPE
            ).stdout

        pip, extra = str(root / "bin" / "pip"), f"pecan[tensorflow] @ {wheel.resolve().as_uri()}"
        call(pip, "install", "--quiet", extra, f"tensorflow-cpu=={tensorflow}")
        for program in (*PROGRAMS, "pecan"):
            assert "Usage:" in call(str(root / "bin" / program), "--help", timeout=60)
        sys.stdout.write(call(str(root / "bin" / "python"), "-c", CHECK, timeout=300))
        call(pip, "check")
        call(pip, "uninstall", "--quiet", "--yes", "pecan")
        left = [path for path in root.rglob("*pecan*") if path != wheel]
        assert not left, f"pip uninstall left files: {left}"


def main() -> None:
    """Run the wheel with each TensorFlow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--tensorflow", action="append", help="version to test; may be given several times")
    arguments = parser.parse_args()
    for version in arguments.tensorflow or ("2.18.1", "2.21.0"):
        run(arguments.wheel, version)


if __name__ == "__main__":
    main()
