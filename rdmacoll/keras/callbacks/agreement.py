"""Ranks agree, before variables are sent, on where `fit` begins and which variables there are.

Pure: takes the descriptions of all ranks, and returns decisions or raises one error for all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rdmacoll.errors import ConfigError, MismatchError

# A group's variables, for which its optimizer is built, their dtypes and shapes, and the hyperparameters.
Groups = Mapping[str, tuple[Any, Mapping[str, str], Mapping[str, str]]]
_NO_GROUP: tuple[Any, Mapping[str, str], Mapping[str, str]] = (None, {}, {})


def check_begin(epochs: Mapping[int, Any]) -> None:
    """Checks that all ranks begin at the same epoch. epochs: by rank, the first one of this `fit`; None if
    there is none. Raises ConfigError."""
    if len(set(epochs.values())) < 2:
        return
    description = " and ".join(
        f"{'has no epoch left' if epoch is None else f'begins at epoch {epoch}'} on {ranks_text(ranks)}"
        for epoch, ranks in _by_value(epochs).items()
    )
    raise ConfigError(
        f"fit {description}: a callback has restored the epoch on some ranks, or initial_epoch differs. "
        "Give fit the same initial_epoch on every rank (rdmacoll.engine.broadcast(np.array(epoch), 0) gives "
        "them rank 0's), or restore on every rank."
    )


def check_tuning(tuned: Mapping[int, bool]) -> None:
    """Checks that Keras tunes nothing. tuned: by rank, whether Keras tunes the steps of an execution.
    Raises ConfigError."""
    ranks = [rank for rank, is_tuned in sorted(tuned.items()) if is_tuned]
    if ranks:
        raise ConfigError(
            f'the model is compiled with steps_per_execution="auto" on {ranks_text(ranks)}: Keras would '
            "choose it by each rank's clock, and ranks would wait in loops of different lengths. Give every "
            "rank the same number."
        )


def check_wrapped(names: Mapping[int, list[str]]) -> None:
    """Checks that all ranks have the same wrapped optimizers. names: by rank, their names. Raises
    MismatchError."""
    wrapped = {rank: ", ".join(own_names) for rank, own_names in names.items()}
    if len(set(wrapped.values())) < 2:
        return
    description = " and ".join(
        f"{one or 'none'} on {ranks_text(ranks)}" for one, ranks in _by_value(wrapped).items()
    )
    raise MismatchError(
        f"ranks train with different wrapped optimizers: {description}. Call rdmacoll.DistributedOptimizer "
        "on every rank, in the same order, also for the optimizer of a loaded model."
    )


def check_unreduced(prints: Mapping[int, Mapping[str, int]], labels: Mapping[str, str]) -> None:
    """Checks that the first batch has changed variables alike on all ranks. prints: by rank, fingerprints of
    changed variables whose gradients were not reduced, by key. labels: names of the variables for people.
    Raises MismatchError."""
    for key in _union(prints.values()):
        found = {rank: own.get(key) for rank, own in prints.items()}
        if None not in found.values() and len(set(found.values())) > 1:
            groups = " and ".join(ranks_text(ranks) for ranks in _by_value(found).values())
            raise MismatchError(
                f"the first batch of fit has given {labels.get(key, key)} different values on {groups}, and "
                "no gradient of it was reduced: ranks train apart. Call rdmacoll.DistributedOptimizer on the "
                "optimizer that updates it, and then model.compile, or pass allow_unwrapped=True to "
                "BroadcastGlobalVariablesCallback if ranks are to differ there."
            )


def check_problems(problems: Mapping[int, str]) -> None:
    """Reports a rank's problem to all ranks. problems: by rank, the error of building its slots; empty:
    none. Raises ConfigError."""
    for rank, problem in problems.items():
        if problem:
            raise ConfigError(
                f"rank {rank} cannot create the optimizer variables that other ranks have restored: {problem}"
            )


def slots_to_build(groups: Mapping[int, Groups]) -> dict[str, list[str]]:
    """Returns the optimizers that only some ranks have built, with the variables of these ranks."""
    missing: dict[str, list[str]] = {}
    for key in _union(groups.values()):
        lists = [one[key][0] if key in one else None for one in groups.values()]
        if any(one != lists[0] for one in lists):
            missing[key] = _union(one or () for one in lists)
    return missing


def check_equal(groups: Mapping[int, Groups], labels: Mapping[int, Mapping[str, str]]) -> None:
    """Checks that all ranks have the same variables and hyperparameters. labels: by rank, the names of its
    variables for people. Raises MismatchError with the first variable or hyperparameter that differs."""
    for key in _union(groups.values()):
        found = {rank: one.get(key, _NO_GROUP) for rank, one in groups.items()}
        differing = _first_difference({rank: one[2] for rank, one in found.items()})
        if differing is not None:
            raise MismatchError(
                f"ranks cannot be made equal: {differing[0]} ({key}) is {differing[1]}, and it is not a "
                "variable. Give all ranks' optimizers the same arguments, or load the file on all ranks."
            )
        differing = _first_difference({rank: one[1] for rank, one in found.items()})
        if differing is not None:
            name, description = differing
            path = f"{key}: {name}"
            label = next((one[path] for one in labels.values() if path in one), name)
            raise MismatchError(
                f"ranks cannot be made equal: variable {label} ({path}) is {description}. Build the same "
                "model on every rank before fit (model.build(input_shape), or call it on a batch), with the "
                "same optimizers."
            )
        built = {rank: str(one[0]) for rank, one in found.items()}
        if len(set(built.values())) > 1:
            raise MismatchError(
                f"ranks cannot be made equal: {key} is built for other variables on "
                f"{ranks_text(list(_by_value(built).values())[-1])} than on the others. Build it for the "
                "same variables on every rank, in the same order."
            )


def _first_difference(values: Mapping[int, Mapping[str, str]]) -> tuple[str, str] | None:
    """The first name whose value differs between ranks, and a text about the value on each rank."""
    for name in _union(values.values()):
        found = {rank: one.get(name) for rank, one in values.items()}
        if len(set(found.values())) > 1:
            return name, " and ".join(
                f"{'missing' if one is None else one} on {ranks_text(ranks)}"
                for one, ranks in _by_value(found).items()
            )
    return None


def _union(lists: Iterable[Iterable[str]]) -> list[str]:
    """Every item once, in the order of the first list that has it."""
    return list(dict.fromkeys(item for one in lists for item in one))


def _by_value(values: Mapping[int, Any]) -> dict[Any, list[int]]:
    result: dict[Any, list[int]] = {}
    for rank, value in values.items():
        result.setdefault(value, []).append(rank)
    return result


def ranks_text(ranks: list[int]) -> str:
    """Ranks as people write them.

    >>> ranks_text([0]), ranks_text([1, 2, 3]), ranks_text(list(range(9)))
    ('rank 0', 'ranks 1, 2, 3', 'ranks 0, 1, 2, 3 and 5 more')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 5 else ""
    return f"ranks {', '.join(map(str, ranks[:4] if more else ranks))}{more}"
