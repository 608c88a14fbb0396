"""Ranks whose collectives are TensorFlow operations in a `tf.function`: rdmacoll's and Horovod's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from .job import Job, Work
from .values import Array, fill, gradient_value, wrong_gradients, wrong_sums

_MATRIX_ROWS = 256
# TensorFlow learns over its first runs of a function which of its kernels are cheap. It starts the others in
# another thread, and so runs a training's first steps in another order than all later ones. After 40 steps
# the order stays.
WARM_UP_STEPS = 45
_WARM_UP_GRADIENTS = 10  # calls without a backward pass, which may be slow between hosts

# Reduces the gradients of a step. Arguments: (gradients, bytes of a bucket or None).
Reduce = Callable[[Sequence[Any], "int | None"], "list[Any]"]


class OpLibrary:
    """A rank with the operations of one library."""

    def __init__(self, name: str, threads: int) -> None:
        """threads: how many operations TensorFlow runs at once. Each then has one thread. 0: TensorFlow's
        defaults."""
        import tensorflow as tf

        if threads > 0:
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        self.tf = tf
        self._gradients: list[Any] = []
        joined = _rdmacoll() if name == "rdmacoll" else _horovod()
        self.sum_of, self.reduce, version, (self.rank, self.ranks) = joined
        self.facts = {
            "version": version,
            "tensorflow": tf.__version__,
            "threads": f"intra 1, inter {threads}" if threads else "TensorFlow's defaults",
        }

    def make(self, work: Work) -> Job:
        """The job of a work. allreduce: one operation. gradients: a step's gradients, all ready at once.
        backward: the computation of a step alone. step: the computation, whose gradients become ready one
        after the other."""
        if work["what"] == "allreduce":
            return _OneSum(self, work["bytes"] // 4)
        return _Step(self, work)

    def gradients(self, shapes: list[tuple[int, ...]]) -> list[Any]:
        """The gradients of this rank, which are the same in all steps."""
        if [tuple(value.shape) for value in self._gradients] != shapes:
            values = [gradient_value(self.rank, index) for index in range(len(shapes))]
            self._gradients = [self.tf.fill(shape, value) for shape, value in zip(shapes, values)]
        return self._gradients


class _OneSum:
    def __init__(self, library: OpLibrary, count: int) -> None:
        self._library = library
        self._values: Array = np.zeros(count, np.float32)
        self._result: Any = None
        self._function = library.tf.function(lambda x: library.sum_of(x, "one"))
        self._copy_values()

    def _copy_values(self) -> None:
        self._tensor = self._library.tf.constant(self._values)

    def call(self) -> None:
        self._result = self._function(self._tensor)

    def check(self, turn: int) -> int:
        fill(self._values, self._library.rank, turn)
        self._copy_values()
        self.call()
        return wrong_sums(self._result.numpy(), self._library.ranks, turn)

    def clear(self) -> None:
        self._values[:] = 0
        self._copy_values()

    def after(self) -> int:
        return int(np.count_nonzero(self._result.numpy()))


class _Step:
    """A step whose gradients arise in the function and whose sums stay there, as in a training. The timed
    call ends when all sums are ready. Python gets one element of the first sum and one of the last.

    The check compares these elements, and then all elements of the same step with all sums returned.
    """

    def __init__(self, library: OpLibrary, work: Work) -> None:
        tf, shapes = library.tf, [tuple(shape) for shape in work["shapes"]]
        self._ranks = library.ranks
        self._is_reduced = work["what"] != "backward"
        self._seen = (0, len(shapes) - 1)
        self._ends: Any = None
        # Equal on all ranks, since each call communicates.
        self.warm_up_calls = _WARM_UP_GRADIENTS if work["what"] == "gradients" else WARM_UP_STEPS
        values = library.gradients(shapes)
        # The backward pass, from the last layer to the first: the indices of each layer's gradients.
        layers = work.get("layers", [])
        backward = pause(tf, work["manner"], work["backward_s"] / len(layers)) if layers else None
        bucket_bytes = work.get("bucket_bytes")

        def step(one: Any) -> list[Any]:
            gradients = gradients_of(tf, values, layers, backward, one) if backward else list(values)
            return library.reduce(gradients, bucket_bytes) if self._is_reduced else gradients

        def timed(one: Any) -> Any:
            results = step(one)
            # The assertion takes all sums and reads none. TensorFlow would not compute a sum that nothing
            # takes.
            with tf.control_dependencies([tf.raw_ops.Assert(condition=one > 0, data=results)]):
                return tf.stack([tf.reshape(results[index], [-1])[-1] for index in self._seen])

        self._all_sums, self._timed = tf.function(step), tf.function(timed)
        # The factor is an input and no constant of the graph, so that every step computes all products.
        self._one = tf.constant(1.0)

    def call(self) -> None:
        self._ends = self._timed(self._one)

    def check(self, _: int) -> int:
        self.call()
        return self.after()

    def clear(self) -> None:
        """Forgets the last results. Each step makes its gradients itself."""
        self._ends = None

    def after(self) -> int:
        if not self._is_reduced:
            return 0
        results = [one.numpy() for one in self._all_sums(self._one)]
        timed = sum(results[i].flat[-1] != end for i, end in zip(self._seen, self._ends.numpy()))
        return wrong_gradients(results, self._ranks) + int(timed)


def gradients_of(
    tf: Any,
    values: Sequence[Any],
    layers: Sequence[Sequence[int]],
    backward: Callable[[Any], Any],
    one: Any,
) -> list[Any]:
    """The gradients of a backward pass: values times one. layers: the indices of each layer's gradients, from
    the last layer to the first. backward: computes a layer's pass."""
    gradients = list(values)
    computed: list[Any] = []
    for layer in layers:
        # A layer's gradients are computed before the next layer's pass begins. Without this edge TensorFlow
        # chooses the order, and another one in each function.
        with tf.control_dependencies(computed):
            one = backward(one)
        for index in layer:
            gradients[index] = values[index] * one
        computed = [gradients[index] for index in layer]
    return gradients


def pause(tf: Any, manner: str, seconds: float) -> Callable[[Any], Any]:
    """A function for a layer's backward pass, which takes `seconds`. wait: the processor is free, as while
    an accelerator computes. compute: the processor multiplies matrices."""
    if manner == "wait":

        def nap(one: Any) -> Any:
            time.sleep(seconds)
            return one

        def waits(one: Any) -> Any:
            after = tf.numpy_function(nap, [one], tf.float32)
            after.set_shape(())
            return after

        return waits
    matrix = tf.eye(_MATRIX_ROWS)
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        tf.linalg.matmul(matrix, matrix)
        times.append(time.perf_counter() - begin)
    products = max(1, round(seconds / sorted(times)[len(times) // 2]))

    def computes(one: Any) -> Any:
        product = matrix * one
        for _ in range(products):
            product = tf.linalg.matmul(product, matrix)
        return product[0, 0]

    return computes


def _rdmacoll() -> tuple[Any, Reduce, str, tuple[int, int]]:
    import rdmacoll
    from rdmacoll.optimizer.reduce import GradientReducer

    rdmacoll.init()

    def reduce(gradients: Sequence[Any], bucket_bytes: int | None) -> list[Any]:
        reducer = GradientReducer(name="step", op=rdmacoll.Sum, bucket_bytes=bucket_bytes)
        return list(reducer(gradients))

    def sum_of(tensor: Any, name: str) -> Any:
        return rdmacoll.allreduce(tensor, op=rdmacoll.Sum, name=name)

    return sum_of, reduce, rdmacoll.__version__, (rdmacoll.rank(), rdmacoll.size())


def _horovod() -> tuple[Any, Reduce, str, tuple[int, int]]:
    import horovod
    import horovod.tensorflow as hvd

    hvd.init()

    def sum_of(tensor: Any, name: str) -> Any:
        return hvd.allreduce(tensor, op=hvd.Sum, name=name)

    def reduce(gradients: Sequence[Any], _: int | None) -> list[Any]:
        # Backward order. Horovod fuses the gradients that are ready in the same of its cycles.
        count = len(gradients)
        sums = [sum_of(gradients[index], f"gradient_{index}") for index in range(count - 1, -1, -1)]
        return sums[::-1]

    return sum_of, reduce, horovod.__version__, (hvd.rank(), hvd.size())


def join(options: dict[str, Any]) -> OpLibrary:
    """Joins the library's world as a rank."""
    return OpLibrary(options["library"], int(options["threads"]))
