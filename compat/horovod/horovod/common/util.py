"""Helpers that programs import from `horovod.common.util`."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

from rdmacoll.tensorflow import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.lru_cache(maxsize=None)(function)


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets variables of the environment for a while. Those that are None stay as they are."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether rdmacoll serves this framework here: "tensorflow", if it is installed."""
    return ext_base_name == "tensorflow" and importlib.util.find_spec("tensorflow") is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """False: collectives run on the processor."""
    return False


def is_iterable(value: Any) -> bool:
    """Whether `iter` takes the value."""
    return isinstance(value, Iterable)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target` or later. Raises ValueError unless `target` has three parts."""
    from packaging import version

    if len(target.split(".")) != 3:
        raise ValueError(f"{target!r} is no version of three parts, such as 2.3.0.")
    return bool(version.parse(ver) >= version.parse(target))


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether this is a power of two, at least 1."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[Any], num_parts: int) -> list[Sequence[Any]]:
    """The values in `num_parts` consecutive lists, as equal as possible. Later ones are empty if there are
    fewer values."""
    size, more = divmod(len(values), num_parts)
    begins = [part * size + min(part, more) for part in range(num_parts + 1)]
    return [values[begin:end] for begin, end in zip(begins, begins[1:])]
