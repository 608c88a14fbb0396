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
from rdmacoll._start.listen_address import engine_listen_settings
from rdmacoll.errors import ConfigError, RdmacollError
from rdmacoll.process_set import ProcessSet, setting_of

# These words of the library's error say that RDMA cannot be used, and which setting requests it.
_RDMA_REQUESTED = "RDMA was requested ("
_CURE = "To go without it, unset that setting."
_CURE_OF_PROTOCOL = "To go without, give server_protocol=grpc."
Sets = Union[Sequence[Union[ProcessSet, Iterable[int]]], str, None]


@dataclass(frozen=True)
class InitOptions:
    """The settings as the library reads them.

    arguments: the text for the library. settings_error: the first error in the settings, which the other
    ranks hear too; reporting it needs some settings. listed: the start that lists of hosts describe. note: a
    line for rank 0's log."""

    arguments: str
    values: Values
    settings_error: RdmacollError | None
    listed: Launch | None = None
    note: str = ""
    protocol: str = ""  # the protocol of TensorFlow's servers, if it requests RDMA

    @contextlib.contextmanager
    def naming_protocol(self) -> Iterator[None]:
        """Makes an error about unusable RDMA name the protocol, if the protocol requested RDMA."""
        try:
            yield
        except ConfigError as error:
            if not self.protocol or _RDMA_REQUESTED not in str(error):
                raise
            text = str(error).replace(_RDMA_REQUESTED, f"{_RDMA_REQUESTED}server_protocol={self.protocol}: ")
            raise ConfigError(text.replace(_CURE, _CURE_OF_PROTOCOL)) from None


def read_settings(library: Library, process_sets: Sets, settings: Mapping[str, object]) -> InitOptions:
    """The settings alone. An error in them goes to `settings_error`, and is not raised."""
    rows, settings_error = library.readable_settings()
    arguments = ""
    try:
        named_settings = {**settings, "process_sets": setting_of(process_sets)}
        arguments = arguments_text(named_settings, [str(row["name"]) for row in rows])
        rows, settings_error = library.readable_settings(arguments)
    except ConfigError as error:
        settings_error = error
    return InitOptions(arguments, Values(rows), settings_error)


def read_options(
    library: Library,
    process_sets: Sets,
    settings: Mapping[str, object],
    *,
    by_hand: Mapping[str, Any],
    argv: bool | Sequence[str],
    lists: Mapping[str, Any],
) -> InitOptions:
    """Settings and lists of hosts. The lists imply some settings.

    by_hand: comm, rank, size and rendezvous, as given. lists: job_name and so on, as in `init`. Raises
    ConfigError for lists that do not tell which process this is.
    """
    flags = sys.argv if argv is True else () if argv is False or argv is None else argv
    lists_options = cluster.cluster_options(cluster.flags_of(flags), **lists)
    options = read_settings(library, process_sets, settings)
    has_explicit_start = any(value is not None for value in by_hand.values())
    listed = find_lists(lists_options, options.values, has_explicit_start=has_explicit_start)
    implied = cluster.settings_of(lists_options, listed, options.values)
    if listed is not None and not options.values.is_set("RDMACOLL_PORT"):
        implied.update(engine_listen_settings(listed))
        if options.values.is_set("RDMACOLL_INTERFACE"):
            implied.pop("interface", None)
    if implied:
        options = read_settings(library, process_sets, {**settings, **implied})
    note = cluster.protocol_sentence(lists_options, options.values)
    return InitOptions(
        options.arguments,
        options.values,
        options.settings_error,
        listed,
        note,
        lists_options.protocol if "rdma" in implied else "",
    )
