"""The request that all reductions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdmacoll._abi import arguments
from rdmacoll._calls.submission import Call, Operand
from rdmacoll.operators import DTYPES, OPERATOR_CODES


def reduction_call(
    kind: int,
    sources: Sequence[Operand],
    targets: Sequence[Operand],
    op: int,
    name: str | None,
    factors: tuple[Any, Any],
    process_set: int,
    *,
    root: int = 0,
) -> Call:
    """The call that reduces arrays of one dtype.

    factors: the engine multiplies inputs by the first and the result by the second. Raises ConfigError for a
    dtype, an operator or a factor that does not fit.
    """
    dtype = sources[0].dtype
    if factors != (1.0, 1.0):
        factors = arguments.scales(dtype, *factors)
    return Call(
        kind,
        sources,
        targets,
        dtype=DTYPES.reduced(dtype, op),
        op=OPERATOR_CODES[op],  # type: ignore[index]  # an equal number finds it, too
        root=root,
        prescale=factors[0],
        postscale=factors[1],
        name=name,
        process_set=process_set,
    )
