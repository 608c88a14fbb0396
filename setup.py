"""Builds librdmacoll.so and librdmacoll_tf.so with CMake and puts them beside the Python package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
LIBRARIES = ("librdmacoll.so", "librdmacoll_tf.so")


def jobs() -> int:
    return len(os.sched_getaffinity(0))


def build_native(build: Path, libraries: Path) -> None:
    """Configures and builds in `build`; the libraries land in `libraries`."""
    cmake = shutil.which("cmake")
    if cmake is None:
        sys.exit("rdmacoll: cmake 3.18 or newer is needed to build the engine (apt-get install cmake).")
    configure = [
        cmake,
        "-S",
        str(ROOT),
        "-B",
        str(build),
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={libraries}",
    ]
    if shutil.which("ninja") and not (build / "Makefile").exists():
        configure += ["-G", "Ninja"]
    subprocess.run(configure, check=True)
    subprocess.run(
        [cmake, "--build", str(build), "--parallel", str(jobs()), "--target", "rdmacoll", "rdmacoll_tf"],
        check=True,
    )
    missing = [name for name in LIBRARIES if not (libraries / name).exists()]
    if missing:
        sys.exit(f"rdmacoll: the build did not make {', '.join(missing)} in {libraries}.")


class BuildNative(build_ext):
    def run(self) -> None:
        if self.inplace or getattr(self, "editable_mode", False):
            build_native(ROOT / "build" / "release", ROOT / "rdmacoll" / "lib")
        else:
            target = Path(self.build_lib).resolve() / "rdmacoll" / "lib"
            build_native(ROOT / "build" / "wheel", target)

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib) / "rdmacoll" / "lib" / name) for name in LIBRARIES]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformWheel(bdist_wheel):  # type: ignore[misc, unused-ignore]
    """No Python ABI is used: one wheel for every Python 3, per platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=NativeDistribution,
    # The name only makes setuptools run build_ext; CMake knows the sources.
    ext_modules=[Extension("rdmacoll.lib", sources=[])],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
