"""Measures paths between two ranks, each in a world of its own, so that a broken path spoils no other.

A round has disjoint pairs. Every rank takes part in every exchange of texts of a round, even if its own pair
has failed. So no rank waits for a failed one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable

from rdmacoll._abi.library import Library, load
from rdmacoll._abi.settings import Values, arguments_text
from rdmacoll._start.bootstrap_exchange import BootstrapExchange
from rdmacoll._start.launch import Launch
from rdmacoll._world import world
from rdmacoll.errors import RdmacollError

Pair = tuple[int, int]  # the lower rank first: it leads
_MARGIN_S = 30.0  # seconds for the work between the parts of a test


@dataclass(frozen=True)
class RankGroup:
    """The ranks that the launcher describes, and the channel between them; no engine."""

    library: Library
    values: Values
    launch: Launch
    exchange: BootstrapExchange
    job: str
    secret: bytes


@contextmanager
def rank_group() -> Iterator[RankGroup]:
    """Meets the other ranks without starting an engine. Raises ConfigError, as `init` does."""
    library = load()
    values = Values(library.settings())
    start = world.start_of()
    exchange = start.exchange(values)
    try:
        yield RankGroup(library, values, start.launch, exchange, *exchange.job())
    finally:
        exchange.close()


@dataclass(frozen=True)
class Test:
    """The measurements of one path. `settings` as in `init()`: they overrule the environment's."""

    settings: Mapping[str, object]
    measures: int  # LATENCY, EXCHANGE, BANDWIDTH of the library, added up
    sizes: Sequence[int]
    repeats: int = 3
    burst_s: float = 0.02
    progress_timeout_s: float = 10.0  # no progress for so long is an error
    limit_s: float = 60.0

    def plan(self) -> dict[str, Any]:
        """The measurements that both ends make, as arguments of `pair_run`."""
        return {
            "measures": self.measures,
            "sizes": self.sizes,
            "repeats": self.repeats,
            "burst_s": self.burst_s,
            "progress_timeout_s": self.progress_timeout_s,
            "limit_s": self.limit_s,
        }


@dataclass(frozen=True)
class Outcome:
    """The leader's measurements, or the error messages of both ends. "": no error at that end."""

    found: Mapping[str, Any]
    problems: tuple[str, str] = ("", "")

    @property
    def is_ok(self) -> bool:
        """Whether the path was measured to the end."""
        return self.problems == ("", "")


class _Round:
    """One round of measurements, and every rank's answers in it."""

    def __init__(self, group: RankGroup, pairs: Sequence[Pair], test: Test, name: str) -> None:
        self._group, self._test = group, test
        self._problems: dict[Pair, tuple[str, str]] = dict.fromkeys(pairs, ("", ""))
        me = group.launch.rank
        self._own_pair = next((pair for pair in pairs if me in pair), None)
        self._address = 0
        self._name = name

    def run(self) -> dict[Pair, Outcome]:
        """Opens, finds the node, connects and measures. Returns the same at every rank."""
        try:
            cards = self._agree(self._open)
            leaders = self._agree(lambda own_pair: self._node(own_pair, cards))
            reports = self._agree(lambda own_pair: self._run(own_pair, leaders))
        finally:
            if self._address:
                self._group.library.pair_free(self._address)
        return {
            pair: Outcome({} if problems != ("", "") else reports[pair[0]], problems)
            for pair, problems in self._problems.items()
        }

    def _agree(self, step: Callable[[Pair], Any]) -> list[Any]:
        """Runs a step in each pair without a problem so far. Returns all ranks' answers; None: no answer."""
        own_result: dict[str, Any] = {}
        if self._own_pair is not None and self._problems[self._own_pair] == ("", ""):
            try:
                own_result = {"ok": step(self._own_pair)}
            except RdmacollError as error:
                own_result = {"problem": str(error)}
        # Ranks without work wait here for the ranks that measure.
        self._group.exchange.renew(2 * self._test.limit_s + _MARGIN_S, "--timeout, twice, and some seconds")
        answers = [json.loads(text) for text in self._group.exchange.allgather(json.dumps(own_result))]
        for pair, problems in self._problems.items():
            if problems == ("", ""):
                low, high = (str(answers[rank].get("problem", "")) for rank in pair)
                self._problems[pair] = (low, high)
        return [answer.get("ok") for answer in answers]

    def _open(self, pair: Pair) -> str:
        names = self._group.values.names()
        self._address, card = self._group.library.pair_open(
            side=pair.index(self._group.launch.rank),
            numbers=pair,
            job=f"{self._group.job} {self._name}",
            secret=self._group.secret,
            arguments=arguments_text(self._test.settings, names),
        )
        return card

    def _node(self, pair: Pair, cards: Sequence[Any]) -> int:
        return self._group.library.pair_node(self._address, [cards[rank] for rank in pair])

    def _run(self, pair: Pair, leaders: Sequence[Any]) -> dict[str, Any]:
        node_leaders = [leaders[rank] for rank in pair]
        return self._group.library.pair_run(self._address, node_leaders, **self._test.plan())


def measure(group: RankGroup, pairs: Sequence[Pair], test: Test, name: str) -> dict[Pair, Outcome]:
    """Runs one round: `test` on every pair, at the same time. Returns the same result at every rank.

    All ranks call it with the same arguments. `name` is new for each round.
    """
    return _Round(group, pairs, test, name).run()
