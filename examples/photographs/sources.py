"""Finds the photographs of the demo. All of them are parts of packages.

The sizes small and medium use the colour photographs in scikit-learn and scikit-image. The size large adds photographs
from Debian's wallpaper packages. `apt-get download` fetches the packages, and the demo unpacks them without installing
them. If apt-get is missing or offline, the demo prints a line and uses only the built-in photographs.
"""

from __future__ import annotations

import importlib.resources
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

BUILT_IN = (
    ("sklearn.datasets", "images/china.jpg"),
    ("sklearn.datasets", "images/flower.jpg"),
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/ihc.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/rocket.jpg"),
)
# Package → name of each photograph → its path in the package.
WALLPAPERS = {
    "mate-backgrounds": {
        name: f"usr/share/backgrounds/mate/nature/{name}.jpg"
        for name in (
            "Aqua",
            "Blinds",
            "Dune",
            "FreshFlower",
            "Garden",
            "GreenMeadow",
            "LadyBird",
            "RainDrops",
            "Storm",
            "TwoWings",
            "Wood",
            "YellowFlower",
        )
    },
    "plasma-workspace-wallpapers": {
        name: f"usr/share/wallpapers/{name}/contents/images/2560x1600.jpg"
        for name in (
            "Autumn",
            "BytheWater",
            "ColorfulCups",
            "EveningGlow",
            "FallenLeaf",
            "Kite",
            "OneStandsOut",
            "Path",
        )
    },
    "lomiri-wallpapers-20.04": {
        name: f"usr/share/backgrounds/{name}.jpg"
        for name in ("Fossa_by_Jasper_Roks", "Infinite-Sea_by_Aury88", "Kleiber_by_Lukas_Baubkus")
    },
}


def built_in() -> Iterator[tuple[str, pathlib.Path]]:
    """Yields name and path of each photograph in the installed packages."""
    for package, inside in BUILT_IN:
        path = pathlib.Path(str(importlib.resources.files(package))) / inside
        if path.is_file():
            yield path.stem, path


def wallpapers(cache: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields name and path of each photograph in Debian's wallpaper packages, unpacked under `cache`."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print("apt-get is missing: using only the photographs in the Python packages")
        return
    for package, insides in WALLPAPERS.items():
        tree = cache / package
        if not tree.is_dir():
            try:
                _unpack(package, tree)
            except (subprocess.SubprocessError, OSError) as error:
                print(f"could not download {package} ({error}): continuing without it")
                continue
        for name, inside in insides.items():
            path = tree / inside
            if path.is_file():
                yield name, path


def _unpack(package: str, tree: pathlib.Path) -> None:
    """Downloads a package with apt-get and unpacks it. The directory appears only when it is complete."""
    print(f"apt-get download {package}")
    scratch = tree.with_name(tree.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "tree").mkdir(parents=True)
    subprocess.run(["apt-get", "download", package], cwd=scratch, check=True, timeout=600, capture_output=True)
    archive = next(scratch.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", str(archive), str(scratch / "tree")], check=True, timeout=600)
    (scratch / "tree").rename(tree)
    shutil.rmtree(scratch)
