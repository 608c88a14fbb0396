"""Builds the libraries with CMake and puts them beside the Python package."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
LIBRARIES = ("librdmacoll.so", "librdmacoll_tf.so")
# Not built without the headers of Python. The package works without it, only slower.
EXTENSION = "fast_calls.abi3.so"
# The platform that release/zig.cmake builds for. release/check_wheel.py checks it against the result.
RELEASE_PLATFORM = "manylinux_2_17_x86_64.manylinux2014_x86_64"


def jobs() -> int:
    return len(os.sched_getaffinity(0))


def zig_environment() -> dict[str, str]:
    """The environment in which release/zig.cmake finds zig."""
    try:
        import ziglang
    except ImportError:
        sys.exit("rdmacoll: a release is built with zig: pip install -r release/requirements.txt")
    return {**os.environ, "PATH": os.pathsep.join([str(Path(ziglang.__file__).parent), os.environ["PATH"]])}


def build_native(build: Path, libraries: Path, *, is_release: bool = False) -> None:
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
        f"-DRDMACOLL_PYTHON={sys.executable}",
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]
    if is_release:
        configure += [f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'release' / 'zig.cmake'}"]
    if shutil.which("ninja") and not (build / "Makefile").exists():
        configure += ["-G", "Ninja"]
    subprocess.run(configure, check=True, env=zig_environment() if is_release else None)
    targets = ("rdmacoll", "rdmacoll_tf", "rdmacoll_python")
    subprocess.run(
        [cmake, "--build", str(build), "--parallel", str(jobs()), "--target", *targets], check=True
    )
    missing = [name for name in LIBRARIES if not (libraries / name).exists()]
    if missing:
        sys.exit(f"rdmacoll: the build did not make {', '.join(missing)} in {libraries}.")


class BuildNative(build_ext):
    def run(self) -> None:
        if self.inplace or getattr(self, "editable_mode", False):
            build_native(ROOT / "build" / "release", ROOT / "rdmacoll" / "lib")
        else:
            is_release = self.distribution.get_command_obj("bdist_wheel").release
            build = self.build_folder()
            # Each compiler's libraries stay beside its own objects, or one's would pass for the other's.
            build_native(build, build / "lib", is_release=is_release)
            for name in self.get_outputs():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(build / "lib" / Path(name).name, name)

    def build_folder(self) -> Path:
        is_release = self.distribution.get_command_obj("bdist_wheel").release
        return ROOT / "build" / ("zig" if is_release else "wheel")

    def get_outputs(self) -> list[str]:
        has_extension = (self.build_folder() / "lib" / EXTENSION).exists()
        names = (*LIBRARIES, EXTENSION) if has_extension else LIBRARIES
        return [str(Path(self.build_lib) / "rdmacoll" / "lib" / name) for name in names]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildPython(build_py):
    """Adds the package `horovod`, which `rdmacoll run --horovod` shows to programs."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a development install finds it in the tree
            shutil.copytree(
                ROOT / "compat" / "horovod" / "horovod",
                Path(self.build_lib) / "rdmacoll" / "_horovod_package" / "horovod",
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )


class PlatformWheel(bdist_wheel):  # type: ignore[misc, unused-ignore]
    """One wheel for every Python 3, per platform: the extension is optional, and on the stable ABI."""

    user_options: ClassVar = [
        *bdist_wheel.user_options,
        ("release", None, "build with zig, for every x86-64 Linux with glibc 2.17 or newer"),
    ]
    boolean_options: ClassVar = [*bdist_wheel.boolean_options, "release"]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.release = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", RELEASE_PLATFORM if self.release else super().get_tag()[2]


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=NativeDistribution,
    # The name only makes setuptools run build_ext; CMake knows the sources.
    ext_modules=[Extension("rdmacoll.lib", sources=[])],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython, "bdist_wheel": PlatformWheel},
)
