"""`import pecan` loads nothing large and changes no global state."""

import json
import pathlib
import subprocess
import sys

import pecan

PACKAGE = pathlib.Path(pecan.__file__).parent


def _python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return result.stdout


def test_import_loads_no_tensorflow_and_no_shared_object_and_starts_no_thread():
    found = json.loads(
        _python(
            "import json, sys, threading, signal; before = signal.getsignal(signal.SIGINT)\n"
            "import pecan\n"
            "pecan.distribute('host:1', deterministic=True); pecan.DispatcherConfig(); pecan.ShardingPolicy.DYNAMIC\n"
            "maps = open('/proc/self/maps').read()\n"
            "print(json.dumps({'modules': [m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'numpy')],\n"
            "  'object': '_pecan_native' in maps, 'threads': threading.active_count(),\n"
            "  'handler': signal.getsignal(signal.SIGINT) is before}))"
        )
    )
    assert found == {"modules": [], "object": False, "threads": 1, "handler": True}


def test_public_names_exist_and_have_docstrings():
    for name in pecan.__all__:
        value = getattr(pecan, name)
        assert name == "__version__" or value.__doc__, name


def test_the_package_is_marked_as_typed():
    assert (PACKAGE / "py.typed").exists()
