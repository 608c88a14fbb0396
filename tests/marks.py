"""Marks of test cases."""

from __future__ import annotations

import pytest


def slow(*values: object) -> object:
    """A case for `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.slow)
