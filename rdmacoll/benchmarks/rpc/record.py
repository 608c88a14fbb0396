"""Records the sizes of the tensors that a training reduces, or pushes to servers, in one step."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from rdmacoll._base.text import bytes_text
from rdmacoll.benchmarks import resnet50

# The printed distribution has a line for each power of this number.
_STEP = 4


class Recording:
    """The list of tensors with the most bytes among all lists that the training passed: a step's."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.lists = 0  # the number of lists so far
        self.unknown = 0  # tensors of the step whose size depends on the data
        self.exit_code: Any = 0  # exit code of the program

    def note_list(self, named: Sequence[tuple[str, Any]]) -> None:
        """Notes a list of (name, tensor). A tensor None stands for a missing gradient."""
        self.lists += 1
        known, unknown = [], 0
        for name, tensor in named:
            size = None if tensor is None else _bytes_of(tensor)
            if size:
                known.append({"name": name, "bytes": size})
            unknown += tensor is not None and size is None
        if _total(known) > _total(self.tensors):
            self.tensors, self.unknown = known, unknown


def _total(tensors: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(tensor["bytes"]) for tensor in tensors)


def _bytes_of(tensor: Any) -> int | None:
    """The size of a tensor in bytes. None if it depends on the data, as with rows of an embedding."""
    if not hasattr(tensor, "indices") and tensor.shape is not None:
        dims = list(tensor.shape)
        if all(dim is not None for dim in dims):
            item = int(getattr(tensor.dtype, "itemsize", 0) or tensor.dtype.size)
            return item * int(math.prod(dims))
    return None


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Records the tensors that optimizers and tapes reduce or push when they are traced, and those of
    `rdmacoll.ps.exchange`. These functions are replaced from outside, so that a training without a
    recording pays nothing."""
    from rdmacoll import ps

    seen = Recording()
    exchange = ps.exchange

    def exchanged(gradients: Mapping[str, Any], *others: Any, **named: Any) -> Any:
        seen.note_list(list(gradients.items()))
        return exchange(gradients, *others, **named)

    with contextlib.ExitStack() as replaced:
        replaced.enter_context(mock.patch.object(ps, "exchange", exchanged))
        if importlib.util.find_spec("tensorflow") is not None:
            from rdmacoll.ops import servers
            from rdmacoll.ops._labels import path_of
            from rdmacoll.optimizer.reduce import GradientReducer

            # `servers.exchange` calls it, too.
            reduce, step = GradientReducer.__call__, servers.exchange_undeclared

            def reduced(self: Any, gradients: Sequence[Any], variables: Any = None) -> Any:
                names = [path_of(variable) for variable in variables or []]
                names += [f"gradient_{number}" for number in range(len(names), len(gradients))]
                seen.note_list(list(zip(names, gradients)))
                return reduce(self, gradients, variables)

            def stepped(gradients: Sequence[Any], names: Sequence[str], *others: Any) -> list[Any]:
                seen.note_list(list(zip(names, gradients)))
                return step(gradients, names, *others)

            replaced.enter_context(mock.patch.object(GradientReducer, "__call__", reduced))
            replaced.enter_context(mock.patch.object(servers, "exchange_undeclared", stepped))
        yield seen


def of_program(command: Sequence[str]) -> Recording:
    """Runs a Python program in this process, as `python PROGRAM ARGUMENT...` does, and records it."""
    arguments, path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = list(command), str(Path(command[0]).resolve().parent)
    try:
        with recording() as seen:
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as end:
                seen.exit_code = end.code or 0
            return seen
    finally:
        sys.argv, sys.path[0] = arguments, path


def of_resnet50() -> Recording:
    """The recording of a training of ResNet-50, without running one."""
    seen = Recording()
    seen.lists = 1
    seen.tensors = [
        {"name": f"gradient_{number}", "bytes": 4 * math.prod(shape)}
        for number, shape in enumerate(resnet50.shapes())
    ]
    return seen


def distribution(tensors: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """(limit, number of tensors, sum of their bytes) for each power of 4 with tensors up to that limit.

    >>> distribution([{"bytes": 40}, {"bytes": 64}, {"bytes": 1000}])
    [('64', 2, 104), ('1K', 1, 1000)]
    """
    groups: dict[int, list[int]] = {}
    for tensor in tensors:
        limit = _STEP
        while limit < tensor["bytes"]:
            limit *= _STEP
        groups.setdefault(limit, []).append(int(tensor["bytes"]))
    return [(bytes_text(limit), len(sizes), sum(sizes)) for limit, sizes in sorted(groups.items())]
