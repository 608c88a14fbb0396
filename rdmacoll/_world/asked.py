"""What `init()` was asked for, in arguments, flags and variables, before anybody is met."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from rdmacoll._abi.library import Library
from rdmacoll._abi.settings import Values, arguments_text
from rdmacoll._start import cluster
from rdmacoll._start.bootstrap import find_lists
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous_place import data_settings
from rdmacoll.engine.errors import ConfigError, RdmacollError
from rdmacoll.engine.process_set import ProcessSet, setting_of

# What the library says where RDMA cannot be used.
_ASKED = "RDMA was asked for ("
_CURE = "To go without, unset what asks for it."
_CURE_OF_PROTOCOL = "To go without, give server_protocol=grpc."
Sets = Union[Sequence[Union[ProcessSet, Iterable[int]]], str, None]


@dataclass(frozen=True)
class Asked:
    """The settings as the library reads them, and what is wrong with them: an error that the other ranks are
    to hear, for which some settings are needed. `listed`: the start, where lists of hosts say it; `note`: a
    sentence for rank 0's log."""

    arguments: str
    values: Values
    wrong: RdmacollError | None
    listed: Launch | None = None
    note: str = ""
    protocol: str = ""  # of TensorFlow's servers, where it asks for RDMA

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """RDMA that cannot be used is said to have been asked for by the protocol, where that has done it."""
        try:
            yield
        except ConfigError as error:
            if not self.protocol or _ASKED not in str(error):
                raise
            text = str(error).replace(_ASKED, f"{_ASKED}server_protocol={self.protocol}: ")
            raise ConfigError(text.replace(_CURE, _CURE_OF_PROTOCOL)) from None


def read(library: Library, process_sets: Sets, settings: Mapping[str, object]) -> Asked:
    """The settings alone. Raises nothing for what is wrong with them."""
    rows, wrong = library.readable_settings()
    arguments = ""
    try:
        named = {**settings, "process_sets": setting_of(process_sets)}
        arguments = arguments_text(named, [str(row["name"]) for row in rows])
        rows, wrong = library.readable_settings(arguments)
    except ConfigError as error:
        wrong = error
    return Asked(arguments, Values(rows), wrong)


def ask(
    library: Library,
    process_sets: Sets,
    settings: Mapping[str, object],
    *,
    by_hand: Mapping[str, Any],
    argv: bool | Sequence[str],
    lists: Mapping[str, Any],
) -> Asked:
    """Settings and lists of hosts, which bring some settings along. Raises ConfigError for lists that do not
    say who this process is.

    by_hand: comm, rank, size and rendezvous, as given. lists: job_name and so on, as of `init`.
    """
    words = sys.argv if argv is True else () if argv is False or argv is None else argv
    told = cluster.told_by(cluster.flags_of(words), **lists)
    asked = read(library, process_sets, settings)
    is_told_otherwise = any(value is not None for value in by_hand.values())
    listed = find_lists(told, asked.values, is_told_otherwise=is_told_otherwise)
    follows = cluster.settings_of(told, listed, asked.values)
    if listed is not None and not asked.values.is_given("RDMACOLL_PORT"):
        follows.update(data_settings(listed))
        if asked.values.is_given("RDMACOLL_INTERFACE"):
            follows.pop("interface", None)
    if follows:
        asked = read(library, process_sets, {**settings, **follows})
    note = cluster.protocol_sentence(told, asked.values)
    return Asked(
        asked.arguments, asked.values, asked.wrong, listed, note, told.protocol if "rdma" in follows else ""
    )
