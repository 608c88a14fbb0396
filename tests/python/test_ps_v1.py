"""Asynchronous parameter servers through TensorFlow 1's optimizers, in sessions and eagerly."""

from __future__ import annotations

from typing import Any

import pytest
from marks import slow
from ranks import ROOT, run

PROGRAM = ROOT / "tests" / "multiprocess" / "ps_async_v1.py"
# Sums of a few floats in another order, over 12 steps.
TOLERANCE = 2e-6


def there(workers: int, servers: int, task: str, *arguments: str) -> list[Any]:
    """Runs a task of ps_async_v1.py and returns the reports of the ranks. 0 servers: colocated ones."""
    words = [task, str(servers or "colocated"), *arguments]
    return run(PROGRAM, workers + servers, arguments=words, preloaded=True, deadline_s=240).succeeded()


@pytest.mark.parametrize(
    ("optimizer", "way", "servers"),
    [
        ("momentum", "minimize", 1),
        ("rmsprop", "refs", 2),
        ("adam", "eager", 0),
        slow("gradient_descent", "minimize", 2),
        slow("gradient_descent", "refs", 0),
        slow("decayed", "apply", 1),
        slow("nesterov", "eager", 2),
        slow("adam", "minimize", 1),
        slow("adagrad", "apply", 0),
        slow("adagrad", "function", 1),
        slow("centered", "minimize", 2),
    ],
)
def test_one_worker_trains_as_the_plain_optimizer_in_every_step(optimizer, way, servers):
    in_steps, at_the_end, moved = there(1, servers, "same_as_plain", optimizer, way)[0]
    assert in_steps < TOLERANCE
    assert at_the_end < TOLERANCE
    assert moved > 0.01


@pytest.mark.parametrize(
    ("optimizer", "servers"), [("adam", 2), slow("momentum", 0), slow("gradient_descent", 1)]
)
def test_two_workers_train_together(optimizer, servers):
    reports = there(2, servers, "together", optimizer)[:2]
    for found in reports:
        assert found["loss"] < 0.6
        assert found["steps"] == 60
        assert found["updates"] >= 2 * 2 * 60


@pytest.mark.parametrize("way", ["session", "eager"])
def test_the_first_step_gives_the_values_of_the_first_worker_and_no_gradient_at_others(way):
    assert there(2, 2, "first_values", way)[:2] == [[True] * 6] * 2


@pytest.mark.parametrize("way", ["resources", slow("refs")])
def test_another_session_begins_with_what_the_servers_have(way):
    for found in there(2, 1, "second_session", way)[:2]:
        assert all(found.values()), found


@pytest.mark.slow
def test_steps_of_two_optimizers_in_one_run_are_declared_in_the_same_order():
    first, *others = there(2, 1, "two_in_one_run")[:2]
    assert others == [first]
    assert first[0] == -1.5
    assert first[1] in (-20, -30)  # -20 if the second worker's first step took values and pushed nothing


@pytest.mark.slow
def test_loss_scaling_leaves_steps_out():
    assert there(1, 1, "scaled_losses")[0] == [0.5, 1.5] * 2


def test_what_servers_cannot_do_is_said():
    errors = there(1, 1, "refused")[0]
    expected = [
        "ConfigError: an optimizer of class FtrlOptimizer cannot be applied. Servers apply GradientDescent",
        "ConfigError: Own changes _apply_dense of MomentumOptimizer: servers cannot apply these changes",
        "MomentumOptimizer has a momentum of class function, which servers cannot compute: give a number.",
        "ConfigError: DistributedOptimizer(op=Sum) has no meaning with asynchronous",
        "ConfigError: variable 'v' is float16, and servers update float32 and float64: keep it",
        "ConfigError: variable 'v' has a constraint",
        "ConfigError: variable 'v' is at the servers already",
    ]
    assert len(errors) == len(expected), errors
    for text, part in zip(errors, expected):
        assert part in text
