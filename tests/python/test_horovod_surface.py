"""The public names of Horovod 0.28.1 are here with their arguments, in their order, with their defaults."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import ROOT

sys.path.insert(0, str(ROOT / "release/docs"))
import horovod_table


def test_every_name_is_as_horovods_or_on_the_list_with_a_reason() -> None:
    """A name on the list that is as Horovod's fails, too."""
    found, listed = horovod_table.differences(), horovod_table.reasons()
    unlisted = {name: text for name, text in found.items() if name not in listed}
    assert not unlisted, "\n".join(f"{name} {text}" for name, text in unlisted.items())
    assert not set(listed) - set(found), "these are as Horovod's by now"


def test_the_table_of_the_page_is_fresh() -> None:
    """`python release/docs/horovod_table.py` writes it."""
    assert horovod_table.PAGE.read_text() == horovod_table.page()


def _function(tensor: Any, name: Any = None, *, other: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([["tensor"], ["name", "None"]], ""),
        ([["tensor"]], ""),
        ([["name", "None"], ["tensor"]], "other arguments"),
        ([["tensor"], ["name", "None"], ["other", "1"]], "other arguments"),
        ([["tensor"], ["name", "''"]], "another default of name"),
        ([["tensor"], ["name"]], ""),
        ([["tensor", "None"], ["name", "None"]], "another default of tensor"),
        ([], "needs other arguments"),
        ([["tensor"], ["**kwargs"]], "no other keywords"),
    ],
)
def test_other_orders_defaults_and_names_are_seen(arguments: list[list[str]], text: str) -> None:
    found = horovod_table.difference(_function, {"arguments": arguments}, SimpleNamespace())
    assert text in found
    assert bool(text) == bool(found)
