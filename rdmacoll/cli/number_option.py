"""Numbers with a fraction as options."""

from __future__ import annotations

import math
from typing import Any

import click

MICROSECONDS_MAX = 1e7
GBIT_MIN, GBIT_MAX = 0.001, 100_000


class Number(click.FloatRange):
    """A range without "nan" and "inf", which click compares with no limit and takes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises click's error for a value that is none, or outside the range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
