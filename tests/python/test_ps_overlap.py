"""Asynchronous parameter servers: a step's requests begin during its backward pass."""

from __future__ import annotations

import pytest
import tensorflow as tf
from ranks import ROOT, run

from rdmacoll.optimizer.server_requests import requests_of

PROGRAM = ROOT / "tests" / "multiprocess" / "ps_overlap.py"
# After 3 steps of SGD with the rate 1 and gradients of ones. Only one row of the embedding has a gradient.
VALUES = [[-3.0, 0.0], [-3.0], [-3.0]]


def found_with(way: str) -> dict[str, object]:
    outcome = run(PROGRAM, 2, arguments=[way], preloaded=True, deadline_s=120)
    report = outcome.succeeded()[0]
    assert isinstance(report, dict)
    return report


def test_a_bucket_is_applied_while_later_gradients_are_computed():
    found = found_with("function")
    assert found == {"seen": [True] * 3, "updates": [3] * 3, "buckets": 3, "values": VALUES}


@pytest.mark.parametrize("way", ["staleness", "eager"])
def test_all_dense_gradients_are_one_request(way):
    found = found_with(way)
    assert found == {"seen": [False] * 3, "updates": [2] * 3, "buckets": 0, "values": VALUES}


def test_requests_have_the_order_of_the_backward_pass():
    slices = tf.IndexedSlices(tf.zeros((1, 4)), tf.constant([0]), tf.constant([9, 4]))
    dense = [tf.zeros(size) for size in (1, 10, 10, 300)]
    gradients = [dense[0], slices, dense[1], dense[2], slices, dense[3]]
    # A request is ready with its last gradient, the one of the lowest index.
    assert [one.indices for one in requests_of(gradients, 50)] == [(5,), (4,), (3,), (1,), (2, 0)]
    assert [one.indices for one in requests_of(gradients, 10_000)] == [(4,), (1,), (5, 3, 2, 0)]


def test_requests_of_unknown_shapes_and_of_none():
    specs = [tf.TensorSpec((None, 2), tf.float64), tf.TensorSpec((3,), tf.float32)]
    assert [one.indices for one in requests_of(specs, 100)] == [(1,), (0,)]
    assert requests_of([], 100) == []
