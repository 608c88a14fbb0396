"""The options of `init()`, from arguments, flags and variables, before this rank meets any other."""

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

# These words of the library's error tell that RDMA cannot be used, and who asked for it.
_ASKED = "RDMA was asked for ("
_CURE = "To go without, unset what asks for it."
_CURE_OF_PROTOCOL = "To go without, give server_protocol=grpc."
Sets = Union[Sequence[Union[ProcessSet, Iterable[int]]], str, None]


@dataclass(frozen=True)
class Asked:
    """The settings as the library reads them.

    arguments: the text for the library. wrong: the first error in the settings, which the other ranks hear
    too; reporting it needs some settings. listed: the start that lists of hosts describe. note: a line for
    rank 0's log.
    """

    arguments: str
    values: Values
    wrong: RdmacollError | None
    listed: Launch | None = None
    note: str = ""
    protocol: str = ""  # the protocol of TensorFlow's servers, if it requests RDMA

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Makes an error about unusable RDMA name the protocol, if the protocol requested RDMA."""
        try:
            yield
        except ConfigError as error:
            if not self.protocol or _ASKED not in str(error):
                raise
            text = str(error).replace(_ASKED, f"{_ASKED}server_protocol={self.protocol}: ")
            raise ConfigError(text.replace(_CURE, _CURE_OF_PROTOCOL)) from None


def read(library: Library, process_sets: Sets, settings: Mapping[str, object]) -> Asked:
    """The settings alone. An error in them goes to `wrong`, and is not raised."""
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
    """Settings and lists of hosts. The lists imply some settings.

    by_hand: comm, rank, size and rendezvous, as given. lists: job_name and so on, as in `init`. Raises
    ConfigError for lists that do not tell which process this is.
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
