"""Helpers that programs import from `horovod.runner`."""

from rdmacoll import run

__all__ = ["run"]
