"""Adds the compiled files to the wheel. All other settings are in pyproject.toml."""

import pathlib
import runpy

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = pathlib.Path(__file__).resolve().parent


class Binary(Distribution):
    """Marks the wheel as specific to a platform and a Python version, because the shared object is an extension."""

    def has_ext_modules(self):
        """Returns True."""
        return True


class BuildEverything(build_py):
    """Builds the shared object and the programs before it collects the files of the package."""

    def run(self):
        """Builds, collects, and adds the licences of the compiled modules."""
        build = runpy.run_path(str(ROOT / "bindings" / "build.py"))
        binaries = [build["build_object"](), *build["build_programs"]()]
        super().run()
        licences = runpy.run_path(str(ROOT / "wheels" / "licences.py"))
        licences["write"](pathlib.Path(self.build_lib) / "pecan" / licences["INSIDE"], binaries)


setup(distclass=Binary, cmdclass={"build_py": BuildEverything})
