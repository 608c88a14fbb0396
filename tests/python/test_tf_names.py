"""Names that programs for Horovod import, in the modules from which they import them."""

from __future__ import annotations

import importlib

import pytest

import rdmacoll
from rdmacoll import ops

WORLD = "is_initialized rank size local_rank local_size cross_rank cross_size shutdown"
OPERATORS = "Average Sum Min Max Product"
SAME = f"{WORLD} {OPERATORS} Compression global_process_set"
# Names of rdmacoll that Horovod does not have, or that mean the same.
NAMES = {
    "rdmacoll.tensorflow": f"{SAME} barrier gather grouped_broadcast process_sets reduce scatter",
    "rdmacoll.tensorflow.keras": SAME,
    "rdmacoll.keras": f"{SAME} callbacks",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_of_one_meaning_are_the_same_objects(module: str) -> None:
    found = importlib.import_module(module)
    for name in NAMES[module].split():
        assert getattr(found, name) is getattr(rdmacoll, name)
    assert set(NAMES[module].split()) <= set(found.__all__)
    for callback in ("BroadcastGlobalVariablesCallback", "MetricAverageCallback"):
        assert hasattr(rdmacoll.keras.callbacks, callback)


def test_every_collective_is_there() -> None:
    for name in ops.__all__:
        assert getattr(rdmacoll, name) is getattr(ops, name)
        assert hasattr(rdmacoll.tensorflow, name)
    assert set(ops.__all__) <= set(rdmacoll.__all__) & set(rdmacoll.tensorflow.__all__)


def test_dir_shows_the_public_names_alone() -> None:
    assert {name for name in dir(rdmacoll) if not name.startswith("_")} == set(rdmacoll.__all__) - {
        "__version__"
    }


def test_a_name_of_horovod_that_is_elsewhere_is_an_error_with_its_place() -> None:
    place = rdmacoll.tensorflow
    elsewhere = {one for one in place.__all__ if not hasattr(rdmacoll, one)}
    assert {"broadcast_object", "elastic"} <= elsewhere
    for name in elsewhere:
        with pytest.raises(AttributeError, match=rf"use rdmacoll\.tensorflow\.{name}$"):
            getattr(rdmacoll, name)
    with pytest.raises(AttributeError, match=r"use rdmacoll\.keras\.load_model$"):
        rdmacoll.load_model  # noqa: B018
    assert callable(rdmacoll.keras.load_model)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        rdmacoll.nothing  # noqa: B018


def test_operators_have_horovods_numbers() -> None:
    operators = (rdmacoll.Average, rdmacoll.Sum, rdmacoll.Min, rdmacoll.Max, rdmacoll.Product)
    assert [int(op) for op in operators] == [0, 1, 3, 4, 5]
