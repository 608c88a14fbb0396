"""horovodrun's options of elastic jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdmacoll._base.text import counted
from rdmacoll._launch.hosts import MORE_SLOTS
from rdmacoll._launch.membership import Limits
from rdmacoll.errors import ConfigError

_TIMEOUT_S = 600
_ANY_SIZE = 1 << 20


@dataclass(frozen=True)
class Option:
    """An option. least: of a number; None for a text."""

    name: str  # as in Horovod's own code
    flags: tuple[str, ...]
    help: str
    least: int | None = None
    values: int = 1


OPTIONS = (
    Option(
        "min_num_proc",
        ("--min-np", "--min-num-proc"),
        "Makes the job elastic: it goes on while it has so many ranks.",
        least=1,
    ),
    Option(
        "max_num_proc",
        ("--max-np", "--max-num-proc"),
        "The most ranks of an elastic job. Default: all slots.",
        least=1,
    ),
    Option(
        "host_discovery_script",
        ("--host-discovery-script",),
        "Makes the job elastic: a command that prints its hosts, in lines like node1:4, once a second.",
    ),
    Option("slots", ("--slots-per-host",), "The slots of hosts that are printed without a number.", least=1),
    Option(
        "elastic_timeout",
        ("--elastic-timeout",),
        f"Seconds that an elastic job waits for slots, and for late ranks. Default: {_TIMEOUT_S}.",
        least=1,
    ),
    Option("reset_limit", ("--reset-limit",), "How often the ranks may change. Default: no limit.", least=0),
    Option(
        "cooldown_range",
        ("--blacklist-cooldown-range",),
        "Seconds until the slot of a failed rank is used again: first, and at most. They double with each "
        "failure on a host. Default: such a slot is lost.",
        least=1,
        values=2,
    ),
)


def is_elastic(given: Mapping[str, Any]) -> bool:
    """Whether the options describe an elastic job. Raises ConfigError if some need one, and it is none."""
    elastic = bool(given.get("min_num_proc") or given.get("host_discovery_script"))
    for option in OPTIONS:
        if not elastic and given.get(option.name) not in (None, ()):
            raise ConfigError(f"{option.flags[0]} ({option.name}) is for elastic jobs: give --min-np, too.")
    return elastic


def limits_of(given: Mapping[str, Any], *, slots: int | None) -> Limits:
    """The sizes and times of an elastic job. slots: of its hosts; None if hosts may come. Raises
    ConfigError."""
    first = given.get("num_proc") or given.get("min_num_proc") or 1
    least = given.get("min_num_proc") or first
    most = given.get("max_num_proc") or slots or _ANY_SIZE
    if not 1 <= least <= first <= most:
        raise ConfigError(
            f"--min-np {least}, -np {first} and --max-np {most}: none may be less than the one before it."
        )
    if slots is not None and first > slots:
        raise ConfigError(f"-np {first}: the hosts have {counted(slots, 'slot')}. {MORE_SLOTS}")
    cooldown = given.get("cooldown_range") or None
    if cooldown is not None and not (len(cooldown) == 2 and 0 < cooldown[0] <= cooldown[1]):
        raise ConfigError(f"--blacklist-cooldown-range {cooldown}: give a shortest and a longest time.")
    return Limits(
        least=least,
        most=most,
        first=first,
        timeout_s=float(given.get("elastic_timeout") or _TIMEOUT_S),
        resets=given.get("reset_limit"),
        cooldown_s=None if cooldown is None else (float(cooldown[0]), float(cooldown[1])),
    )
