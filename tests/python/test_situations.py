"""Training in the situations that programs bring about: every pair of two of their properties, on two ranks.

Each rank makes three updates with its own data. The weights then have the same bits on all ranks, and equal
those of one process that trains on the joined batches. Otherwise rdmacoll refuses the situation with a
sentence in REFUSALS.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pairwise import Case, all_cases, cover
from ranks import ROOT, run
from test_tf_optimizers import path_of, tf_keras as tf_keras

PROGRAM = ROOT / "tests" / "multiprocess" / "situations.py"
DIMENSIONS = {
    "keras": ("Keras 3", "Keras 2", "Keras 2 legacy"),
    "mode": ("graph", "eager", "session"),  # session: Keras 2 without eager execution
    "loop": ("fit", "train_step", "loop"),
    "wrapped": ("optimizer", "tape"),
    "replicas": ("1", "2"),
    "order": ("first", "last"),  # the broadcast's place among the callbacks
    "restore": ("none", "weights", "file", "checkpoint"),  # by rank 0 alone: weights in on_train_begin
    "passes": ("1", "2"),
    "precision": ("float32", "mixed"),
    "built": ("yes", "late"),
}
SEED = 33
SEEDS = (SEED, 34, 35)  # the whole cover, of each
EXECUTIONS = ("eager execution", "sessions", "refused sessions")
SAMPLE = 2  # further cases in `make test`
_USUAL = {
    "keras": "Keras 2 legacy",
    "mode": "graph",
    "loop": "loop",
    "wrapped": "optimizer",
    "replicas": "1",
    "order": "first",
    "restore": "none",
    "passes": "1",
    "precision": "mixed",
    "built": "yes",
}
ONCE_WRONG: Sequence[Case] = (
    # Keras's loss scaling puts a pass into a branch of a graph.
    {**_USUAL, "passes": "2"},
    # A restored optimizer lists its slots in another order.
    {**_USUAL, "loop": "fit", "restore": "checkpoint"},
    # A loaded model's variables have other names, and replicas have threads of their own.
    {
        **_USUAL,
        "keras": "Keras 3",
        "loop": "train_step",
        "wrapped": "tape",
        "replicas": "2",
        "restore": "file",
    },
    # A loaded optimizer has its loss scaling around it before it is wrapped, others get it in `compile`.
    {**_USUAL, "keras": "Keras 3", "loop": "fit", "restore": "file", "passes": "2"},
)
_IN_SESSIONS = {**_USUAL, "mode": "session", "loop": "fit"}
SESSIONS: Sequence[Case] = (
    {**_IN_SESSIONS, "restore": "checkpoint", "passes": "2"},
    {**_IN_SESSIONS, "restore": "checkpoint", "replicas": "2", "precision": "float32"},
    {**_IN_SESSIONS, "restore": "file", "loop": "train_step", "order": "last"},
    {**_IN_SESSIONS, "replicas": "2", "passes": "2"},
    {**_IN_SESSIONS, "replicas": "2", "built": "late"},
    {**_IN_SESSIONS, "keras": "Keras 2"},
    {**_IN_SESSIONS, "keras": "Keras 3"},
    {**_IN_SESSIONS, "passes": "2", "built": "late", "precision": "float32"},
)
# Situations in which the first batch builds the model. With a strategy, Keras 3 builds it before.
BUILDS_LATE: Sequence[Case] = tuple(
    {**case, "loop": loop, "built": "late"}
    for case in ({"keras": "Keras 2"}, {"keras": "Keras 2 legacy"}, {"keras": "Keras 3", "replicas": "1"})
    for loop in ("fit", "train_step")
)
# Refused cases, and words of their errors. The first rule that fits counts.
REFUSALS: Sequence[tuple[Case, str]] = (
    ({"keras": "Keras 2", "mode": "session"}, "cannot train without eager execution"),
    ({"keras": "Keras 3", "mode": "session"}, "cannot train without eager execution"),
    # Keras itself refuses this.
    ({"mode": "session", "replicas": "2", "built": "late"}, "do not support distribution strategy"),
    # In sessions Keras never calls a train_step.
    ({"mode": "session", "wrapped": "tape"}, "has reduced no gradient of model"),
    ({"mode": "session", "replicas": "2", "passes": "2"}, "cannot apply gradients conditionally there"),
    # Without eager execution Keras builds the model from the data, before callbacks.
    ({"mode": "session"}, ""),
    # A program sends its optimizer's variables in their order. A restored optimizer has another order.
    (
        {"keras": "Keras 2 legacy", "loop": "loop", "restore": "checkpoint", "built": "yes"},
        "in different orders",
    ),
    # If the model is built late, the order differs only with a strategy.
    (
        {"keras": "Keras 2 legacy", "loop": "loop", "restore": "checkpoint", "replicas": "2"},
        "MismatchError: ranks disagree about operation number",
    ),
    # Rank 0 alone has built the model when the ranks agree on their variables.
    *(
        ({**case, "restore": restore}, "ranks cannot be made equal")
        for case in BUILDS_LATE
        for restore in ("weights", "file")
    ),
)


def fits(case: Case, rules: Sequence[Case]) -> bool:
    """Returns whether a rule describes the case."""
    return any(rule.items() <= case.items() for rule in rules)


def is_possible(case: Case) -> bool:
    """Returns whether a program can be in this situation at all."""
    if case["mode"] == "session" and not _is_possible_in_sessions(case):
        return False
    if case["loop"] == "fit" and case["wrapped"] == "tape":
        return False
    if case["wrapped"] == "tape" and case["passes"] != "1":
        return False
    if case["loop"] == "loop" and case["order"] == "last":
        return False
    # Keras 3 restores no checkpoint into a model that is not built.
    return (case["keras"], case["built"], case["restore"]) != ("Keras 3", "late", "checkpoint")


def _is_possible_in_sessions(case: Case) -> bool:
    """A loop would have to run ops by itself. Keras has only its legacy optimizers for an earlier training,
    and loads no file into a strategy. Other optimizers are refused when they are wrapped."""
    if case["loop"] == "loop":
        return False
    if case["keras"] != "Keras 2 legacy" and (case["wrapped"], case["restore"]) not in (
        ("optimizer", "none"),
        ("optimizer", "weights"),
    ):
        return False
    return case["restore"] != "file" or case["replicas"] == "1"


def refusal_of(case: Case) -> str:
    """Returns words of the error that the case ends in, or "" if it ends well."""
    return next((words for rule, words in REFUSALS if rule.items() <= case.items()), "")


def is_good(case: Case, text: str) -> bool:
    """Returns whether `text` is the outcome that the case must have."""
    if words := refusal_of(case):
        return words in text
    if case["restore"] in ("none", "checkpoint") and fits(case, BUILDS_LATE):
        # Each rank computes the gradients of the first batch with its own weights.
        return text == "same" or text.startswith("other than one process")
    return text == "same"


def outcomes_of(cases: Sequence[Case], folder: Path) -> list[list[str | None]]:
    """Runs cases in one process on each of two ranks. Returns each rank's outcomes."""
    env = {"PYTHONPATH": path_of(folder)}
    outcome = run(PROGRAM, 2, arguments=[json.dumps(cases)], env=env, preloaded=True, deadline_s=1500)
    return outcome.succeeded()


def come_true(cases: Sequence[Case], folder: Path, seed: int = SEED) -> None:
    """Runs cases of one mode of execution on two ranks."""
    # After an error in a session, Keras leaves a strategy's graph at any later time.
    is_alone = any(case["mode"] == "session" and refusal_of(case) for case in cases)
    parts = [[case] for case in cases] if is_alone else [list(cases)]
    wrong = []
    for case, *found in (row for part in parts for row in zip(part, *outcomes_of(part, folder))):
        said = [text for text in found if text is not None]
        if len(said) < (2 if refusal_of(case) else 1) or not all(is_good(case, text) for text in said):
            wrong.append(f"{case}: {refusal_of(case) or 'same'!r} was expected, not {found}")
    assert not wrong, f"seed {seed}:\n" + "\n".join(wrong)


def chosen(seed: int = SEED) -> list[Case]:
    """Returns cases that cover all pairs of properties."""
    return cover(all_cases(DIMENSIONS, is_possible), seed)


def by_execution(cases: Sequence[Case]) -> list[list[Case]]:
    """Splits the cases by EXECUTIONS. Cases with TensorFlow 1's graphs need a process of their own."""
    parts: list[list[Case]] = [[] for _ in EXECUTIONS]
    for case in cases:
        parts[0 if case["mode"] != "session" else 2 if refusal_of(case) else 1].append(case)
    return parts


def test_the_cases_have_every_pair() -> None:
    assert all(9 < len(chosen(seed)) < 40 for seed in SEEDS)


def test_some_situations_train_as_one_process_does(tf_keras: Path) -> None:
    some = [case for case in chosen() if case["mode"] != "session"][:SAMPLE]
    come_true([*ONCE_WRONG, *some], tf_keras)


@pytest.mark.slow
def test_sessions_train_as_one_process_does_or_refuse(tf_keras: Path) -> None:
    assert all(is_possible(case) for case in SESSIONS)
    for cases in by_execution(SESSIONS)[1:]:
        come_true(cases, tf_keras)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("number", range(len(EXECUTIONS)), ids=EXECUTIONS)
def test_every_pair_of_properties_trains_as_one_process_does(tf_keras: Path, number: int, seed: int) -> None:
    come_true(by_execution(chosen(seed))[number], tf_keras, seed)
