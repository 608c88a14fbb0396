"""Packs the package `horovod` for the version of rdmacoll in this tree."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parents[2]
about: dict[str, str] = {}
exec((ROOT / "rdmacoll" / "version.py").read_text(), about)
setup(
    version=about["__version__"],
    # TensorFlow is the program's own choice, as with Horovod.
    install_requires=[f"rdmacoll=={about['__version__']}", "cloudpickle", "packaging"],
    options={"build": {"build_base": str(ROOT / "build" / "horovod")}},
)
