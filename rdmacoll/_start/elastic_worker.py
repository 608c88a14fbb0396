"""A worker of an elastic job, which `rdmacoll run --min-np` has started: it asks the launcher for its place
in the next world. The place comes as variables, which `init` reads as those of a start by hand.

The agent of the host (rdmacoll/_launch/agent.py) forwards the question, and puts the answer into its folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rdmacoll._start.inherited import ELASTIC_FOLDER, ELASTIC_WORKER, ELASTIC_WORLD, check_inherited
from rdmacoll._start.init_notice import write_notice

_LOOK_EVERY_S = 0.01


@dataclass
class _Notes:
    """The facts that go with the next question: the rank that this process has lost, or -1, ranks that it
    could not meet at the start of its world, and whether it has a state that others can take over."""

    lost: int = -1
    unmet: Sequence[int] = ()
    has_state: bool = False


_NOTES = _Notes()


def is_worker(variables: MutableMapping[str, str]) -> bool:
    """Whether this process is a worker of an elastic job."""
    return bool(variables.get(ELASTIC_FOLDER)) and bool(variables.get(ELASTIC_WORKER))


def take_place(variables: MutableMapping[str, str]) -> None:
    """In an elastic job: waits for a place in the next world, and adds its variables, if none is held.

    The launcher limits the wait: it ends workers for which there is no world. It sends a worker away if the
    job has left the worker's host. Then this raises SystemExit. Raises ConfigError in a program that a worker
    has started.
    """
    if not is_worker(variables):
        return
    check_inherited(variables)
    if ELASTIC_WORLD in variables:
        return
    number, folder = int(variables[ELASTIC_WORKER]), Path(variables[ELASTIC_FOLDER])
    answer = folder / f"place.{number}"
    answer.unlink(missing_ok=True)
    (folder / f"question.{number}").write_text(json.dumps(asdict(_NOTES)))
    _NOTES.lost, _NOTES.unmet = -1, ()
    write_notice(variables, number)
    while (place := _read(answer)) is None:
        time.sleep(_LOOK_EVERY_S)
    answer.unlink(missing_ok=True)
    if "variables" not in place:
        raise SystemExit(0)
    variables.update(place["variables"])
    variables[ELASTIC_WORLD] = str(place["world"])


def give_up_place(variables: MutableMapping[str, str]) -> None:
    """Forgets the place in a world that has ended, so that `take_place` asks for another one."""
    if variables.pop(ELASTIC_WORLD, None) is not None:
        for name in ("RDMACOLL_RANK", "RDMACOLL_SIZE", "RDMACOLL_RENDEZVOUS", "RDMACOLL_JOB_ID"):
            variables.pop(name, None)


def blame(rank: int, unmet: Sequence[int] = ()) -> None:
    """Notes for the launcher that this process has lost a rank of its world, or could not meet some."""
    _NOTES.lost, _NOTES.unmet = rank, tuple(unmet)


def note_state() -> None:
    """Notes for the launcher that this process has a state that others can take over."""
    _NOTES.has_state = True


def is_world_to_end(variables: MutableMapping[str, str]) -> bool:
    """Whether the launcher wants another world in place of this one: workers have come, or are to go."""
    try:
        return (Path(variables[ELASTIC_FOLDER]) / "renew").read_text() == variables[ELASTIC_WORLD]
    except (OSError, KeyError):
        return False


def called_off(variables: MutableMapping[str, str]) -> str:
    """Why the start of this process's world is of no use; empty if it goes on."""
    if not is_worker(variables) or not is_world_to_end(variables):
        return ""
    return (
        f"world {variables[ELASTIC_WORLD]} does not begin: the launcher forms another one, since a worker "
        "has ended or others have come."
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
