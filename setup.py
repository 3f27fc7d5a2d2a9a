"""Adds to the wheel what is not Python; everything else is in pyproject.toml."""

import pathlib
import runpy

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = pathlib.Path(__file__).resolve().parent


class Binary(Distribution):
    """Marks the wheel as made for one platform and one Python: the shared object is an extension."""

    def has_ext_modules(self):
        """Yes."""
        return True


class BuildEverything(build_py):
    """Builds the shared object and the programs into the package before it is collected."""

    def run(self):
        """Builds, collects, and adds the licences of what was built in."""
        build = runpy.run_path(str(ROOT / "bindings" / "build.py"))
        binaries = [build["build_object"](), *build["build_programs"]()]
        super().run()
        licences = runpy.run_path(str(ROOT / "wheels" / "licences.py"))
        licences["write"](pathlib.Path(self.build_lib) / "pecan" / licences["INSIDE"], binaries)


setup(distclass=Binary, cmdclass={"build_py": BuildEverything})
