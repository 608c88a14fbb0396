"""Names that programs for Horovod import, in the modules from which they import them."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import rdmacoll
from rdmacoll import ops

WORLD = "init shutdown is_initialized rank size local_rank local_size"
OPS = "allreduce allgather broadcast broadcast_variables broadcast_global_variables Compression"
OPERATORS = "Average Sum Min Max Product"
SETS = "ProcessSet global_process_set add_process_set remove_process_set"
NAMES = {
    "rdmacoll.tensorflow": f"{WORLD} {OPS} {OPERATORS} {SETS} cross_rank cross_size "
    "grouped_allreduce alltoall barrier broadcast_ join reducescatter grouped_allgather "
    "grouped_reducescatter DistributedOptimizer DistributedGradientTape BroadcastGlobalVariablesHook",
    "rdmacoll.keras": f"{WORLD} {OPS} {OPERATORS} {SETS} cross_rank cross_size reducescatter "
    "DistributedOptimizer callbacks",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_are_where_horovod_has_them(module: str) -> None:
    found = importlib.import_module(module)
    for name in NAMES[module].split():
        assert getattr(found, name) is getattr(rdmacoll, name)
    assert set(NAMES[module].split()) <= set(found.__all__)
    for callback in ("BroadcastGlobalVariablesCallback", "MetricAverageCallback"):
        assert hasattr(rdmacoll.keras.callbacks, callback)


@pytest.mark.parametrize("module", [rdmacoll, rdmacoll.tensorflow])
def test_every_collective_is_there(module: ModuleType) -> None:
    for name in ops.__all__:
        assert getattr(module, name) is getattr(ops, name)
    assert set(ops.__all__) <= set(module.__all__)


def test_dir_shows_the_public_names_alone() -> None:
    assert {name for name in dir(rdmacoll) if not name.startswith("_")} == set(rdmacoll.__all__) - {
        "__version__"
    }
