"""Names that programs written for Horovod ask for, where they ask."""

from __future__ import annotations

import importlib

import pytest

import rdmacoll

WORLD = "init shutdown is_initialized rank size local_rank local_size"
OPS = "allreduce allgather broadcast broadcast_variables broadcast_global_variables Compression"
OPERATORS = "Average Sum Min Max Product"
NAMES = {
    "rdmacoll.tensorflow": f"{WORLD} {OPS} {OPERATORS} cross_rank cross_size grouped_allreduce "
    "DistributedOptimizer DistributedGradientTape BroadcastGlobalVariablesHook",
    "rdmacoll.keras": f"{WORLD} {OPS} {OPERATORS} DistributedOptimizer callbacks",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_are_where_horovod_has_them(module: str) -> None:
    found = importlib.import_module(module)
    for name in NAMES[module].split():
        assert getattr(found, name) is getattr(rdmacoll, name)
    assert set(NAMES[module].split()) <= set(found.__all__)
    for callback in ("BroadcastGlobalVariablesCallback", "MetricAverageCallback"):
        assert hasattr(rdmacoll.keras.callbacks, callback)
