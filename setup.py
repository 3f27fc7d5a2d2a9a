"""Adds to the wheel what is not Python; everything else is in pyproject.toml."""

import pathlib
import runpy

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

BUILD = pathlib.Path(__file__).resolve().parent / "bindings" / "build.py"


class Binary(Distribution):
    """Marks the wheel as made for one platform and one Python: the shared object is an extension."""

    def has_ext_modules(self):
        """Yes."""
        return True


class BuildEverything(build_py):
    """Builds the shared object and the programs into the package before it is collected."""

    def run(self):
        """Builds, then collects."""
        build = runpy.run_path(str(BUILD))
        build["build_object"]()
        build["build_programs"]()
        super().run()


setup(distclass=Binary, cmdclass={"build_py": BuildEverything})
