"""Functions for the programs of the TensorFlow tests: values that every rank can compute, and the runner."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll

SEED = 20240117


def keras_packages() -> list[Any]:
    """Returns Keras 3, or the Keras of TensorFlow 2.15, and `tf_keras` from the folder in the first argument
    of the program, if there is one."""
    import keras

    if not sys.argv[1]:
        return [keras]
    sys.path.append(sys.argv[1])
    import tf_keras

    return [keras, tf_keras]


def value(rank: int, shape: tuple[int, ...], dtype: str = "float32", *, salt: int = 0) -> np.ndarray:
    """Returns the data of rank `rank`. Each rank can compute the data of all ranks."""
    generator = np.random.default_rng([SEED, rank, salt])
    kind = tf.as_dtype(dtype)
    if kind.is_bool:
        return generator.integers(0, 2, shape).astype(bool)
    if kind.is_integer:
        return generator.integers(0, 5, shape).astype(kind.as_numpy_dtype)
    return generator.standard_normal(shape).astype(kind.as_numpy_dtype)


def all_values(shape: tuple[int, ...], dtype: str = "float32", *, salt: int = 0) -> list[np.ndarray]:
    """Returns the data of all ranks, in order."""
    return [value(rank, shape, dtype, salt=salt) for rank in range(rdmacoll.size())]


def own_data(shape: tuple[int, ...], dtype: str = "float32", *, salt: int = 0) -> Any:
    """Returns this rank's data as a tensor."""
    return tf.constant(value(rdmacoll.rank(), shape, dtype, salt=salt))


TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-5, "float64": 1e-12}
REDUCE = {
    rdmacoll.Sum: np.sum,
    rdmacoll.Average: np.mean,
    rdmacoll.Min: np.min,
    rdmacoll.Max: np.max,
    rdmacoll.Product: np.prod,
}


def expected(op: int, shape: tuple[int, ...], dtype: str, *, salt: int = 0) -> np.ndarray:
    values = np.stack(all_values(shape, dtype, salt=salt))
    wide = values.astype(np.float64 if tf.as_dtype(dtype).is_floating else np.int64)
    result = REDUCE[op](wide, axis=0)
    return result if tf.as_dtype(dtype).is_floating else result.astype(values.dtype)


def close(result: Any, wanted: Any, dtype: str = "float32") -> None:
    tolerance = TOLERANCE.get(dtype, 0)
    got, want = (np.asarray(a.numpy() if tf.is_tensor(a) else a, np.float64) for a in (result, wanted))
    np.testing.assert_allclose(got, want, tolerance, tolerance)


def raised(kind: type[BaseException], call: Callable[[], Any]) -> BaseException:
    """Returns the exception of class `kind` that `call` raises. Fails if it raises none."""
    try:
        result = call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {result!r}")


def equal_on_all_ranks(arrays: list[np.ndarray]) -> bool:
    """Returns whether these arrays have the same bits on all ranks."""
    text = np.frombuffer(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays), np.uint8)
    root = rdmacoll.engine.broadcast(text, 0)
    same = np.array([int(np.array_equal(root, text))], np.int32)
    return bool(rdmacoll.engine.allreduce(same, op=rdmacoll.Min)[0])


def run_all(names: dict[str, Any], prefix: str = "check_") -> None:
    """Runs the functions with this prefix in the order of their definition, and reports their names.

    A failure ends this rank. The others notice that."""
    done = []
    for name, check in list(names.items()):
        if not name.startswith(prefix) or not callable(check):
            continue
        print(f"rank {rdmacoll.rank()}: {name}", flush=True)
        try:
            check()
        except BaseException:
            print(f"rank {rdmacoll.rank()} failed in {name} (seed {SEED})", flush=True)
            traceback.print_exc()
            report({"failed": name})
            sys.stdout.flush()
            raise
        done.append(name)
    report({"done": done})
