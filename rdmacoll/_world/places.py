"""The places of this process in the worlds of an elastic job. In other jobs nothing happens here."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from rdmacoll._abi.settings import Values
from rdmacoll._base.log import Log
from rdmacoll._start import elastic_worker
from rdmacoll._start.bootstrap import own_variables
from rdmacoll.errors import ConfigError, RankFailedError, RdmacollError
from rdmacoll.process_set import ProcessSet

_Result = TypeVar("_Result")
_Named = dict[str, Any]
# The arguments of `started`: by_hand, process_sets, settings, argv, lists.
_LAST_START: list[Any] = [{}, None, {}, False, {}]


def is_elastic() -> bool:
    """Whether this process is a worker of an elastic job."""
    return elastic_worker.is_worker(own_variables())


def may_have_peers(process_set: ProcessSet) -> bool:
    """Whether the set has several ranks, or may have them in a later world."""
    return process_set.size() > 1 or is_elastic()


def take(**by_hand: Any) -> None:
    """Waits for a place in the next world, unless this process has one, or `init` was told its place."""
    if all(one is None for one in by_hand.values()):
        elastic_worker.take_place(own_variables())


def give_up() -> None:
    """Forgets the place in the world that has ended."""
    elastic_worker.give_up_place(own_variables())


def blame(rank: int) -> None:
    """Notes for the launcher that this process has lost a rank. -1: none."""
    elastic_worker.blame(rank)


def note_state() -> None:
    """Notes for the launcher that this process has a state that others can take over."""
    elastic_worker.note_state()


def is_world_to_end() -> bool:
    """Whether the launcher wants another world in place of this one: workers have come, or are to go, or are
    lost."""
    return elastic_worker.is_world_to_end(own_variables())


def check(values: Values) -> None:
    """Raises ConfigError for settings that elastic jobs do not have."""
    if is_elastic() and values.text("RDMACOLL_MODE") == "ps":
        raise ConfigError(
            'mode="ps" in an elastic job: a parameter server keeps its world. Leave out --min-np and '
            "--host-discovery-script, or the mode."
        )


def kept(process_sets: list[ProcessSet]) -> list[ProcessSet]:
    """The sets of the last world that the next one has, too. In an elastic job it may have other ranks."""
    return [] if is_elastic() else process_sets


def arguments() -> dict[str, Any]:
    """The arguments of the last `init`, for that of the next world."""
    by_hand, process_sets, settings, argv, lists = _LAST_START
    return {**by_hand, "process_sets": process_sets, **settings, "argv": argv, **lists}


def started(
    start: Callable[..., _Result],
    by_hand: _Named,
    process_sets: Any,
    settings: _Named,
    argv: Any,
    lists: _Named,
) -> _Result:
    """The result of `start` with these arguments. If a worker of an elastic job is lost while the world
    starts, or is not met, the others start the next one. The launcher limits their number."""
    _LAST_START[:] = by_hand, process_sets, settings, argv, lists
    while True:
        try:
            return start(by_hand, process_sets, settings, argv, lists)
        except RdmacollError as error:
            unmet = getattr(error, "unmet_ranks", ())
            if not is_elastic() or not (isinstance(error, RankFailedError) or unmet or is_world_to_end()):
                raise
            elastic_worker.blame(getattr(error, "rank", -1), unmet)
            give_up()
            end = "" if str(error).endswith((".", "?")) else "."
            Log().warning(f"{error}{end} This worker waits for the next world.")
