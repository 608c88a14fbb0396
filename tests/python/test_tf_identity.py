"""Tests that operations of two ranks match by the names of models, threads and places in a program."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf
from ranks import ROOT, run
from test_tf_ranks import run_checks

from rdmacoll._base.once import once
from rdmacoll.errors import UNNAMED
from rdmacoll.ops._labels import listing, without_counters
from rdmacoll.ops._name_claims import NameClaims
from rdmacoll.optimizer.model_names import Numbers, by_content, content_of


@pytest.mark.parametrize("ranks", [2])
def test_models_of_several_threads_are_kept_apart(ranks: int) -> None:
    run_checks("tf_threads.py", ranks)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_places_in_a_program_are_told_without_counters(ranks: int) -> None:
    run_checks("tf_trace_positions.py", ranks)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_an_order_of_variables_that_differs_is_an_error(ranks: int) -> None:
    path = ROOT / "tests" / "multiprocess" / "tf_variable_order.py"
    outcome = run(path, ranks, preloaded=True)
    assert len(outcome.succeeded()[0]["done"]) == 10
    assert outcome.ranks[0].output.count("by different names") == 1, outcome.text()


class Thing:
    """An object that weak references can refer to."""


def in_thread(owners: NameClaims, objects: Sequence[Any], *, after: threading.Event | None = None) -> Any:
    """Starts a thread that claims a name, after the event `after` if one is given.

    Returns a list, which gets the answer of the claim, and the thread.
    """
    said: list[Any] = []

    def work() -> None:
        if after is not None:
            after.wait(30)
        said.append(owners.claim("name", objects))

    thread = threading.Thread(target=work, name="other")
    thread.start()
    if after is None:
        thread.join()
    return said, thread


def test_a_name_is_one_threads_while_others_are_there() -> None:
    owners, go, first, second = NameClaims(), threading.Event(), Thing(), Thing()
    said, waiting = in_thread(owners, [second], after=go)
    assert in_thread(owners, [first])[0] == [None]
    # The first thread has ended, but the second one existed before. Other ranks may have run it first.
    go.set()
    waiting.join()
    assert said == ["other"]


def test_a_thread_that_begins_after_the_end_of_another_is_no_other() -> None:
    owners, first, second = NameClaims(), Thing(), Thing()
    assert in_thread(owners, [first])[0] == [None]
    assert in_thread(owners, [second])[0] == [None]
    assert owners.claim("name", [first]) is None


def test_one_thing_may_have_two_threads() -> None:
    owners, thing, go = NameClaims(), Thing(), threading.Event()
    said, waiting = in_thread(owners, [thing], after=go)
    assert owners.claim("name", [thing]) is None
    go.set()
    waiting.join()
    assert said == [None]
    assert owners.claim("name", [Thing()]) is None  # the thread has ended, and is not the main one


def test_labels_lose_what_processes_count() -> None:
    cases = {
        "dense_5/kernel": "dense/kernel",
        "Adam/m/dense_12/kernel:0": "Adam/m/dense/kernel",
        "adam/dense_5_kernel_momentum": "adam/dense_kernel_momentum",
        "block1_conv2/kernel": "block1_conv2/kernel",
        "v2": "v2",
        "Variable:0": "Variable",
    }
    assert {label: without_counters(label) for label in cases} == cases


def test_listings_differ_by_order_and_counters() -> None:
    def digests(labels: Sequence[str]) -> list[str]:
        first = listing(labels).partition("\n")[0]
        return [first[begin : begin + 8] for begin in range(0, 32, 8)]

    plain, swapped, counted = (digests(labels) for labels in (["a", "b"], ["b", "a"], ["a_3", "b"]))
    assert [one == other for one, other in zip(plain, swapped)] == [False, True, False, True]
    assert [one == other for one, other in zip(plain, counted)] == [False, False, True, True]
    assert listing(["a\nb", "c"]).endswith("\na b\nc")
    assert listing([]) == listing(["a"]) == listing(["", ""]) == ""
    long = listing([f"{number:0100d}" for number in range(10_000)])
    assert len(long) < 40_000


def test_content_is_that_of_names_and_shapes_in_any_order() -> None:
    def variable(name: str, *shape: int, dtype: Any = tf.float32) -> Any:
        return tf.Variable(tf.zeros(shape, dtype), name=name)

    a, b = variable("a", 2), variable("b", 3)
    assert content_of([a, b]) == content_of([b, a]) == content_of([variable("b", 3), variable("a_7", 2)])
    others = [[a], [a, variable("b", 2)], [a, variable("c", 3)], [a, variable("b", 3, dtype=tf.float64)]]
    assert len({content_of(one) for one in [[a, b], *others]}) == 5


def test_a_model_of_a_thread_that_has_no_name_says_so() -> None:
    assert by_content("optimizer", [tf.Variable(0.0, name="a")]).startswith(f"optimizer {UNNAMED} of ")


def test_models_are_numbered_as_they_come() -> None:
    numbers, models = Numbers(), [[tf.Variable(0.0, name="same")] for _ in range(3)]
    assert [numbers.number(models[index]) for index in (0, 1, 0, 2, 1)] == [0, 1, 0, 2, 1]
    assert numbers.number([tf.constant(1.0)]) == numbers.number([tf.constant(2.0)]) == 3
    del models[0]
    assert numbers.number([tf.Variable(0.0, name="same")]) == 4


def test_other_steps_per_execution_are_told_in_one_sentence() -> None:
    path = ROOT / "tests" / "multiprocess" / "tf_steps_per_execution.py"
    outcome = run(path, 2, preloaded=True, arguments=["4", "2"])
    for report in outcome.reports:
        for words in ("StalledError", "different iterations", "as many batches", "steps_per_execution"):
            assert words in report, report
    output = outcome.ranks[0].output
    assert output.count("still waiting") == 1, output
    (sentence,) = [line for line in output.splitlines() if "still waiting" in line]
    for words in ("rank 0", "rank 1", "steps_per_execution"):
        assert words in sentence, sentence


def test_a_first_use_is_that_of_one_thread() -> None:
    calls, barrier = [], threading.Barrier(2)

    @once
    def first_use() -> object:
        calls.append(threading.current_thread())
        time.sleep(0.2)
        if len(calls) == 1:
            raise ValueError("the first try fails")
        return object()

    def work() -> None:
        barrier.wait(30)
        try:
            results.append(first_use())
        except ValueError:
            results.append(first_use())

    results: list[object] = []
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(calls) == 2
    assert results[0] is results[1] is first_use()
    # This one lets two threads run a function at once.
    assert not [path for path in (ROOT / "rdmacoll").rglob("*.py") if "@lru_cache" in path.read_text()]
