"""The options of commands that name a transport take their names from the library's table."""

from __future__ import annotations

from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from rdmacoll._abi.library import load
from rdmacoll.cli import main, transport_option
from rdmacoll.errors import ConfigError

# A new row of the table of transports.
TOY = {"name": "toy", "title": "TOY", "shares_memory": False, "via_nic": False, "is_off": False}


def test_an_option_takes_every_transport_of_the_library_and_no_other(monkeypatch):
    rows = [*load().transports(), TOY]
    monkeypatch.setattr(transport_option, "load", lambda: SimpleNamespace(transports=lambda: rows))
    option = transport_option.TransportName()
    assert [option.convert(row["name"], None, None) for row in rows] == ["shm", "rdma", "tcp", "toy"]
    with pytest.raises(click.BadParameter) as refused:
        option.convert("quic", None, None)
    assert str(refused.value) == "'quic' is not one of 'shm', 'rdma', 'tcp', 'toy'."


def test_every_transport_between_nodes_is_a_network_of_plan(monkeypatch):
    rows = [{**row, "is_off": True} for row in load().transports()]
    monkeypatch.setattr(transport_option, "load", lambda: SimpleNamespace(transports=lambda: [*rows, TOY]))
    plan = [*("plan", "--nodes", "2", "--bytes", "8", "--network")]
    shown = CliRunner().invoke(main.commands, ["plan", "--help"]).output
    assert "--network [rdma|tcp|toy]" in shown
    assert "joined by toy" in CliRunner().invoke(main.commands, [*plan, "toy"]).output
    assert "joined by toy" in CliRunner().invoke(main.commands, plan[:-1]).output
    refused = CliRunner().invoke(main.commands, [*plan, "shm"])
    assert refused.exit_code == 2
    assert "'shm' is not one of 'rdma', 'tcp', 'toy'" in refused.output


def test_help_that_names_transports_is_shown_without_the_library_too(monkeypatch):
    def missing():
        raise ConfigError("librdmacoll.so is missing")

    monkeypatch.setattr(transport_option, "load", missing)
    shown = CliRunner().invoke(main.commands, ["plan", "--help"])
    assert shown.exit_code == 0
    assert "--network TRANSPORT" in shown.output
