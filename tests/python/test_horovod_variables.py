"""Horovod's variables: each one sets a setting, identifies a rank, or is named as without effect."""

from __future__ import annotations

import sys

import pytest
from rank_program import program
from ranks import ROOT, run

from rdmacoll._abi.library import load
from rdmacoll._abi.settings import Values
from rdmacoll._start.horovod_variables import OF_LAUNCHERS, WITHOUT_EFFECT, lines, without_effect
from rdmacoll._start.inherited import without_launch

sys.path.insert(0, str(ROOT / "release/docs"))
import horovod_table

ALL = [name for names in horovod_table.variables().values() for name in names]
# A value for each variable that is honoured, and what it sets.
HONOURED = {
    "HOROVOD_FUSION_THRESHOLD": ("65536", {"RDMACOLL_BUCKET_BYTES": "65536"}),
    "HOROVOD_GLOO_IFACE": ("lo", {"RDMACOLL_INTERFACE": "lo"}),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": ("1", {"RDMACOLL_ALLREDUCE_ALGORITHM": "two_level"}),
    "HOROVOD_LOG_LEVEL": ("TRACE", {"RDMACOLL_LOG": "debug"}),
    "HOROVOD_STALL_CHECK_DISABLE": (
        "1",
        {"RDMACOLL_STALL_WARNING_S": "1e+09", "RDMACOLL_STALL_ERROR_S": "1e+09"},
    ),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("30", {"RDMACOLL_STALL_WARNING_S": "30"}),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("120", {"RDMACOLL_STALL_ERROR_S": "120"}),
    "HOROVOD_TIMELINE": ("DYNAMIC", {"RDMACOLL_TIMELINE": "DYNAMIC"}),
    "HOROVOD_START_TIMEOUT": ("90", {"RDMACOLL_START_TIMEOUT_S": "90"}),
}


def values() -> Values:
    """The settings that this process's variables give."""
    return Values(load().settings())


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ALL)
def test_each_variable_of_horovod_is_honoured_or_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, settings = HONOURED.get(name, ("1", {}))
    monkeypatch.setenv(name, value)
    found = values()
    assert {setting: found.text(setting) for setting in settings} == settings
    text = "\n".join(lines({name: value}, found))
    if settings:
        phrase = " and ".join(f"{setting}={value}" for setting, value in settings.items())
        assert text == f"Horovod's variables: {name}={value} sets {phrase}."
    elif name in OF_LAUNCHERS:
        assert text == ""
    else:
        assert text == f"Horovod's variables without effect: {name} ({WITHOUT_EFFECT[name]})."


def test_the_reasons_are_about_variables_of_horovod() -> None:
    assert not set(WITHOUT_EFFECT) - set(ALL)
    assert not set(WITHOUT_EFFECT) & (set(HONOURED) | set(OF_LAUNCHERS))
    aliases = {alias for alias in values().aliases() if alias.startswith("HOROVOD_")}
    assert aliases == set(HONOURED)


def test_variables_with_one_reason_stand_together_and_unknown_ones_are_named() -> None:
    variables = dict.fromkeys(("HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG", "HOROVOD_FUSION_TRESHOLD"), "1")
    found = without_effect(variables, values().aliases())
    assert list(found.values()) == [["HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG"], ["HOROVOD_FUSION_TRESHOLD"]]
    assert "no variable of Horovod 0.28.1" in found


def test_the_choice_of_a_launcher_is_not_named_in_its_ranks() -> None:
    chosen = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    assert without_effect(chosen, ()) == {"rdmacoll carries the data itself": sorted(chosen)}
    assert without_effect({**chosen, "HOROVOD_RANK": "0"}, ()) == {}


def test_a_variable_that_our_own_name_beats_is_not_named_as_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "64")
    monkeypatch.setenv("RDMACOLL_BUCKET_BYTES", "128")
    assert list(lines({"HOROVOD_FUSION_THRESHOLD": "64"}, values())) == []
    assert values().text("RDMACOLL_BUCKET_BYTES") == "128"


def test_a_program_that_a_rank_starts_keeps_settings_and_loses_the_ranks_variables() -> None:
    variables = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_FUSION_THRESHOLD": "64"}
    assert without_launch(variables) == {"HOROVOD_FUSION_THRESHOLD": "64"}


def test_rank_0_names_the_variables_once() -> None:
    body = "rdmacoll.shutdown(); rdmacoll.init()"
    environ = {"HOROVOD_FUSION_THRESHOLD": "65536", "HOROVOD_CYCLE_TIME": "3.5", "HOROVOD_AUTOTUNE": "1"}
    outcome = run(program(body), 2, env=environ)
    honoured = "Horovod's variables: HOROVOD_FUSION_THRESHOLD=65536 sets RDMACOLL_BUCKET_BYTES=65536."
    ignored = (
        "Horovod's variables without effect: HOROVOD_AUTOTUNE (rdmacoll tries ways by itself, see "
        "RDMACOLL_TUNE); HOROVOD_CYCLE_TIME (operations start as soon as all ranks are ready)."
    )
    for line in (honoured, ignored):
        assert outcome.text().count(line) == 1, outcome.text()
        assert f"[rdmacoll rank 0] {line}" in outcome.text()
    assert all(rank.report["error"] is None for rank in outcome.ranks)
