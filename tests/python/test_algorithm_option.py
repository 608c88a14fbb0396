"""Options that name an allreduce algorithm."""

from __future__ import annotations

from types import SimpleNamespace

import click
import pytest

from rdmacoll._abi.library import load
from rdmacoll.cli import algorithm_option


def test_an_option_takes_every_algorithm_that_can_be_forced_and_no_other(monkeypatch):
    rows = [*load().algorithms(), {"name": "toy", "can_be_forced": True}]
    monkeypatch.setattr(algorithm_option, "load", lambda: SimpleNamespace(algorithms=lambda: rows))
    names = algorithm_option.names()
    assert (names[0], names[-1]) == ("auto", "toy")
    assert "parameter_server" not in names
    assert algorithm_option.algorithms("toy,auto") == ["toy", "auto"]
    with pytest.raises(click.BadParameter) as refused:
        algorithm_option.algorithms("auto,pipelined_tree")
    assert str(refused.value) == f"'pipelined_tree' is not one of {', '.join(map(repr, names))}."
