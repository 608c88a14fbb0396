"""Optimizers of TensorFlow 1 with asynchronous parameter servers, which apply their updates: a step pushes
gradients and takes fresh values, in a session by ops of its graph.

The worker's optimizer has no slots, so checkpoints of `tf.compat.v1.train.Saver` have none; those of
`ps.save` have them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll.engine.errors import ConfigError, RdmacollError, error_to_fields
from rdmacoll.engine.ps_session import DTYPES, Array, State
from rdmacoll.ops import servers
from rdmacoll.ops._library import not_converted, op_scope
from rdmacoll.optimizer.copies import Copied
from rdmacoll.optimizer.subclass import subclass
from rdmacoll.ps.calls import current
from rdmacoll.ps.rules import Rule
from rdmacoll.ps.rules_v1 import rule_of, slots_of

# Of a graph: what declares variables, in the order in which the program has made it.
_DECLARING = "rdmacoll_declaring"


class Exchange:
    """One optimizer's variables at the servers."""

    def __init__(self, name: str, rule: Rule, *, multiplies: bool) -> None:
        self.name = name
        self.multiplies = multiplies  # gradients by the learning rate, before they are pushed
        self._rule = rule
        self.buckets: list[Any] = []  # none: each step is one request to each server
        self.pairs: list[tuple[Any, Any]] = []  # gradients and variables of the step that is made
        self._names: dict[Any, str] = {}
        self._declared: set[str] = set()
        self._declaring = threading.Lock()  # sessions run ops in several threads

    def options(self) -> dict[str, Any]:
        """What makes another one like this."""
        return {"name": self.name}

    @not_converted
    def step(self) -> list[Any]:
        """Pushes the gradients of `pairs`, and assigns the fresh values: what has to run for it."""
        gradients, variables = [list(one) for one in zip(*self.pairs)]
        self.pairs = []
        names = [self._name_of(variable) for variable in variables]
        rows = [name for name, one in zip(names, gradients) if isinstance(one, tf.IndexedSlices)]
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return self._step_of_session(gradients, variables, names, rows)
        with tf.init_scope():
            values = self._declare(names, rows, [one.numpy() for one in variables])
            for variable, value in zip(variables, values):
                variable.assign(value)
        fresh = servers.exchange(gradients, names)
        return [_assign(variable, value) for variable, value in zip(variables, fresh)]

    def _step_of_session(
        self, gradients: list[Any], variables: list[Any], names: list[str], rows: list[str]
    ) -> list[Any]:
        def is_declared() -> Any:
            return np.bool_(self._declared.issuperset(names))

        def declare(*values: Array) -> list[Array]:
            try:
                return self._declare(names, rows, values)
            except RdmacollError as error:
                raise RuntimeError(_text_of(error)) from None

        def begin() -> Any:
            values = tf.numpy_function(
                declare,
                [variable.read_value() for variable in variables],
                [variable.dtype.base_dtype for variable in variables],
            )
            for variable, value in zip(variables, values):
                value.set_shape(variable.shape)
            assigned = [variable.assign(value) for variable, value in zip(variables, values)]
            with tf.control_dependencies(map(_to_wait_for, assigned)):
                return tf.constant(True)

        graph = tf.compat.v1.get_default_graph()
        before = graph.get_collection_ref(_DECLARING)
        # Numbers follow the order of declarations, which is that of the program on all workers.
        context = graph._get_control_flow_context()
        with op_scope(), tf.control_dependencies([] if context else before[-1:]):
            known = tf.numpy_function(is_declared, [], tf.bool)
            known.set_shape(())
            declared = tf.cond(known, lambda: tf.constant(True), begin)
        if context is None:
            before.append(declared.op)
        with tf.control_dependencies([declared]):
            gradients = [_identity(gradient) for gradient in gradients]
        fresh = servers.exchange_undeclared(gradients, names)
        return [_assign(variable, value) for variable, value in zip(variables, fresh)]

    def _declare(self, names: Sequence[str], rows: Sequence[str], values: Sequence[Array]) -> list[Array]:
        """Declares what the servers do not know. The values of all: the first worker's, or the servers'."""
        with self._declaring:
            if self._declared.issuperset(names):
                return list(values)
            arrays = {name: np.array(value, order="C") for name, value in zip(names, values)}
            new = {name: array for name, array in arrays.items() if name not in self._declared}
            for name in new:
                if current().has(name):
                    raise ConfigError(
                        f"variable {name!r} is at the servers already, with the optimizer of its first step, "
                        "which stays: go on with that one, or give variables other names."
                    )
            state = State(0, slots_of(self._rule, new))
            current().declare(new, self._rule.text, [name for name in rows if name in new], [], None, state)
            self._declared.update(new)
            return list(arrays.values())

    def _name_of(self, variable: Any) -> str:
        """The same on all workers: its own, with a number behind one that comes again."""
        key = variable.ref()
        if key not in self._names:
            plain = variable.name.partition(":")[0]
            _check(variable, plain)
            count = 1 + sum(one.partition("#")[0] == plain for one in self._names.values())
            self._names[key] = plain if count == 1 else f"{plain}#{count}"
        return self._names[key]


class Served(Copied):
    """Mixed in before the optimizer's own class."""

    _rdmacoll_reduce: Exchange  # type: ignore[assignment]

    def _create_slots(self, var_list: Any) -> None:
        """Servers have them."""

    def _prepare(self) -> None:
        super()._prepare()  # type: ignore[misc]
        self._rdmacoll_reduce.pairs = []

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self._rdmacoll_reduce.pairs.append((_stepped(self, grad), var))
        return None if tf.executing_eagerly() else tf.no_op()

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return self._apply_dense(grad, handle)

    def _apply_sparse_duplicate_indices(self, grad: Any, var: Any) -> Any:
        # Servers sum rows that come twice.
        return self._apply_dense(grad, var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Any) -> Any:
        return self._apply_dense(tf.IndexedSlices(grad, indices), handle)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        return tf.group(*map(_to_wait_for, self._rdmacoll_reduce.step()), name=name_scope)


def wrap(optimizer: Any, name: str) -> None:
    """Swaps the class of `optimizer`, or of what loss scaling has inside. Raises ConfigError for what servers
    cannot apply."""
    while (inner := getattr(optimizer, "_optimizer", None)) is not None:
        optimizer = inner
    rule, multiplies = rule_of(optimizer)
    exchange = Exchange(name, rule, multiplies=multiplies)
    optimizer.__class__ = subclass(type(optimizer), Served, exchange)  # type: ignore[arg-type]


def _stepped(optimizer: Any, gradient: Any) -> Any:
    """What is pushed of a gradient."""
    if not optimizer._rdmacoll_reduce.multiplies:
        return gradient
    rate = tf.cast(optimizer._learning_rate_tensor, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * rate, gradient.indices, gradient.dense_shape)
    return gradient * rate


def _check(variable: Any, name: str) -> None:
    if np.dtype(variable.dtype.base_dtype.as_numpy_dtype) not in DTYPES:
        raise ConfigError(
            f"variable {name!r} is {variable.dtype.base_dtype.name}: servers update float32 and float64."
        )
    if getattr(variable, "constraint", None) is not None:
        raise ConfigError(
            f"variable {name!r} has a constraint, which servers do not apply: leave it out, or use sync=True."
        )


def _identity(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return tf.identity(gradient)


def _assign(variable: Any, value: Any) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return variable.scatter_update(value)
    return variable.assign(value)


def _to_wait_for(assigned: Any) -> Any:
    """Of what an assignment gives, which may be the variable."""
    return getattr(assigned, "op", assigned) if not tf.executing_eagerly() else assigned


def _text_of(error: RdmacollError) -> str:
    """As a kernel says it, so that `error_from` finds it in TensorFlow's status."""
    fields = error_to_fields(error)
    return f"{fields.pop('kind')}: {fields.pop('message')} [rdmacoll {json.dumps(fields)}]"
