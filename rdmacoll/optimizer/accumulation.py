"""`backward_passes_per_step` for frameworks without an accumulation of their own. Each rank sums its
gradients. The last pass of each step reduces and applies the sums."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import tensorflow as tf

from rdmacoll.errors import ConfigError

Pair = tuple[Any, Any]
_UNKNOWN = (
    "an earlier pass of this step had gradients of variables that had none when the function of the last "
    "pass was traced, and they would be left out: give zeros instead of gradients that are None in some "
    "passes only."
)
_ALL: weakref.WeakSet[Accumulation] = weakref.WeakSet()


def checked_passes(value: Any) -> int:
    """The number of passes in a step. Raises ConfigError."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"backward_passes_per_step={value!r}: give a whole number from 1.")
    return value


class Accumulation:
    """The sums of one optimizer. They belong to this rank, and are in no checkpoint.

    A program may apply gradients of several sets of variables in turn, as a GAN with one optimizer does. Each
    set counts its own passes.
    """

    def __init__(self, passes: int, *, is_mean: bool) -> None:
        self.passes = passes
        self.is_mean = is_mean
        self._divisor = passes if is_mean else 1
        self._sums: dict[Any, Any] = {}  # by variable
        self._count: Any = None
        self._of_sets: dict[frozenset[Any], Accumulation] = {}
        self._latest = self
        self._touched: Any = None  # the highest place of a sum that this step has changed
        _ALL.add(self)
        # whether `compute_gradients` has returned gradients of this rank that are not added yet
        self.has_computed = False

    def of(self, pairs: Sequence[Pair]) -> Accumulation:
        """The sums of this set of variables."""
        self._latest = self._of_sets.setdefault(keys_of(pairs), self.fresh())
        return self._latest

    def sets_of(self, variables: Iterable[Any]) -> list[Accumulation]:
        """The sums of the set of these variables, or of one that has more. Without such a set those of all
        sets that have one of these variables, and without variables those of the latest set."""
        keys = frozenset(_key(variable) for variable in variables)
        if keys in self._of_sets:
            return [self._of_sets[keys]]
        wider = [own for set_keys, own in self._of_sets.items() if keys and keys <= set_keys]
        others = [own for set_keys, own in self._of_sets.items() if keys & set_keys]
        return wider[-1:] or others or [self._latest]

    def counter(self) -> Any:
        """The number of passes since the last complete step, of the set of variables that came last."""
        count = self._latest._count
        return tf.zeros((), tf.int64) if count is None else count % self.passes

    def fresh(self) -> Accumulation:
        """A new accumulation with the same options, without sums."""
        return Accumulation(self.passes, is_mean=self.is_mean)

    def add(self, pairs: Sequence[Pair]) -> tuple[list[Pair], Any]:
        """Adds the gradients of one pass. Returns the pairs with the sums (or means) so far, and whether
        this was the last pass of a step. A sum is None if no pass had a gradient."""
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        self._make(present)
        added = [
            self._sums[_key(variable)].assign_add(tf.convert_to_tensor(gradient))
            for gradient, variable in present
        ]
        with tf.control_dependencies([tf.identity(value) for value in added]):
            is_last = tf.equal(tf.identity(self._count.assign_add(1)) % self.passes, 0)
            check = self._check_known(present, is_last)
        with tf.control_dependencies([] if check is None else [check]):
            sums = {key: total.read_value() / self._divisor for key, total in self._sums.items()}
            is_last = tf.identity(is_last)
        return [(sums.get(_key(variable)), variable) for _, variable in pairs], is_last

    def when(self, is_last: Any, step: Callable[[], Any], other: Callable[[], Any] = lambda: None) -> Any:
        """Runs `step` in the last pass, and then sets the sums to zero. Runs `other` in each other pass.
        Returns a tensor: whether this was the last pass."""

        def last() -> Any:
            with tf.control_dependencies(awaited(step())):
                zeroed = self.clear()
            with tf.control_dependencies(zeroed):
                return tf.identity(is_last)

        def not_last() -> Any:
            with tf.control_dependencies(awaited(other())):
                return tf.identity(is_last)

        return tf.cond(is_last, last, not_last)

    def clear(self) -> list[Any]:
        """Sets the sums to zero. Returns tensors that exist then."""
        touched = [] if self._touched is None else [self._touched]
        return [tf.identity(one.assign(tf.zeros_like(one))) for one in [*self._sums.values(), *touched]]

    def has_begun(self) -> bool:
        """Whether gradients were added."""
        return self._latest._count is not None

    def _check_known(self, present: Sequence[Pair], is_last: Any) -> Any:
        """Notes the sums that this pass changes. Checks in the last pass that it knows all sums of the step:
        a function that was traced before another one made a sum would leave it out. A failure is
        InvalidArgumentError."""
        places = {key: place for place, key in enumerate(self._sums, 1)}
        own = max((places[_key(variable)] for _, variable in present), default=0)
        touched = self._touched.assign(tf.maximum(self._touched, tf.constant(own, tf.int64)))
        is_known = tf.less_equal(tf.identity(touched), len(self._sums))
        return tf.debugging.Assert(tf.logical_or(is_known, tf.logical_not(is_last)), [_UNKNOWN])

    def _make(self, pairs: Sequence[Pair]) -> None:
        """Creates the variables for the sums, outside of the traced function."""
        with tf.init_scope():
            if self._count is None:
                self._count = local_variable(tf.zeros((), tf.int64), "passes")
                self._touched = local_variable(tf.zeros((), tf.int64), "touched")
            for gradient, variable in pairs:
                if _key(variable) not in self._sums:
                    self._sums[_key(variable)] = local_variable(
                        tf.zeros(variable.shape, gradient.dtype), "sum"
                    )


def restart_all() -> None:
    """Sets all sums and counts of passes to zero, eagerly. Ranks of a new world begin a step together, and
    new ranks have no half-filled sums."""
    for one in list(_ALL):
        one.clear()
        if one._count is not None:
            one._count.assign(0)


def together(are_last: Sequence[Any]) -> Any:
    """Whether this is the last pass of a step, which has to be the same for several sets of variables. A
    difference is InvalidArgumentError."""
    is_last = are_last[0]
    for other in are_last[1:]:
        text = "the passes of these variables have been counted apart: apply them together in each pass."
        check = tf.debugging.assert_equal(other, is_last, text)
        with tf.control_dependencies([] if check is None else [check]):
            is_last = tf.identity(is_last)
    return is_last


def awaited(done: Any) -> list[Any]:
    """The control dependencies on what a step returns."""
    return [done] if isinstance(done, (tf.Operation, tf.Tensor)) else []


def keys_of(pairs: Sequence[Pair]) -> frozenset[Any]:
    """A key for this set of variables."""
    return frozenset(_key(variable) for _, variable in pairs)


def _key(variable: Any) -> Any:
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def local_variable(initial: Any, name: str) -> Any:
    """A variable of this rank. In a graph of TensorFlow 1 it is initialised with the local variables, or
    by the session of Keras 2."""
    variable = tf.compat.v1.Variable(
        initial,
        trainable=False,
        name=f"rdmacoll_{name}",
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        use_resource=True,
    )
    for package in ("tf_keras", "keras"):
        track = getattr(sys.modules.get(f"{package}.src.backend"), "track_variable", None)
        if track is not None:
            track(variable)
    return variable
