"""Reductions with factors and compression as Horovod has them: also of integers, and by users' own
compressors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._horovod.mixed import in_two_parts
from rdmacoll.operators import Average, ReduceOp, Sum
from rdmacoll.ops._run_time import size_as
from rdmacoll.ops.compression import Compression, Compressor


def reduced_by(
    run: Callable[..., list[Any]],
    tensors: Sequence[Any],
    op: ReduceOp,
    factors: tuple[float, float],
    compression: Any,
) -> list[Any]:
    """The results of `run(tensors, op=, prescale_factor=, postscale_factor=, compression=)`.

    factors: of the inputs and of the result. Integers are scaled in double precision and truncated; the
    average of integers is their sum, scaled so. compression: of Compression, or an object with `compress`,
    which returns a tensor and its context, and `decompress`, which takes both.
    """
    if compression is not None and not isinstance(compression, Compressor):
        packed = [compression.compress(one) for one in tensors]
        results = reduced_by(run, [one for one, _ in packed], op, factors, Compression.none)
        return [compression.decompress(one, context) for one, (_, context) in zip(results, packed)]
    if op is not Average and factors == (1.0, 1.0):
        return _called(run, tensors, op, factors, compression)

    def of_floats(values: list[Any]) -> list[Any]:
        return _called(run, values, op, factors, compression)

    def of_integers(values: list[Any]) -> list[Any]:
        prescale, postscale = factors
        if op is Average:
            postscale = postscale / size_as(tf.float64)
        scaled = [_scaled(one, prescale) for one in values]
        totals = _called(run, scaled, Sum if op is Average else op, (1.0, 1.0), compression)
        return [_scaled(one, postscale) for one in totals]

    return in_two_parts(tensors, [not one.dtype.is_integer for one in tensors], of_floats, of_integers)


def _called(
    run: Callable[..., list[Any]], tensors: Any, op: ReduceOp, factors: tuple[float, float], compression: Any
) -> list[Any]:
    options = {"op": op, "prescale_factor": factors[0], "postscale_factor": factors[1]}
    return run(tensors, **options, compression=compression)


def _scaled(value: Any, factor: Any) -> Any:
    if isinstance(factor, float) and factor == 1.0:
        return value
    return tf.cast(tf.cast(value, tf.float64) * tf.convert_to_tensor(factor, tf.float64), value.dtype)
