"""Optimizers of TensorFlow 1 with asynchronous parameter servers, which apply their updates. A step pushes
gradients and receives fresh values. In a session, ops of its graph do this.

The worker's optimizer has no slots, so checkpoints of `tf.compat.v1.train.Saver` have none. Those of
`ps.save` have them.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll._abi import mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._ps.session import DTYPES, State
from rdmacoll.errors import ConfigError, RdmacollError, error_to_fields
from rdmacoll.ops import servers
from rdmacoll.ops._interrupts import waiting
from rdmacoll.ops._library import not_converted, op_scope
from rdmacoll.optimizer import server_requests
from rdmacoll.optimizer.buckets import Bucket, checked_bucket_bytes
from rdmacoll.optimizer.subclass import subclass
from rdmacoll.optimizer.wrapped_copies import WrappedCopies
from rdmacoll.ps.calls import current
from rdmacoll.ps.rules import Rule
from rdmacoll.ps.rules_v1 import rule_of, slots_of

# Collection of a graph, in the order of the program: the ops that declare variables and tell whether values
# were replaced.
_DECLARING = "rdmacoll_declaring"
_NUMBERS = itertools.count()  # numbers of exchanges


class Exchange:
    """The variables of one optimizer at the servers."""

    def __init__(self, name: str, rule: Rule, rate: str, bucket_bytes: int | None = None) -> None:
        self.name = name
        self.bucket_bytes = checked_bucket_bytes(bucket_bytes)
        self.rate = rate  # the optimizer's attribute
        self._rule = rule
        self.buckets: list[Bucket] = []  # the requests of the last step; none: one for all gradients
        self.pairs: list[tuple[Any, Any]] = []  # gradients and variables of the step that is built
        self._names: dict[Any, str] = {}
        self._declared: set[str] = set()
        self._number = next(_NUMBERS)
        self._steps: dict[tuple[str, ...], int] = {}  # numbers of steps, by the names of their variables
        self._declaring = threading.Lock()  # sessions run ops in several threads

    def options(self) -> dict[str, Any]:
        """The arguments that create an exchange like this one."""
        return {"name": self.name, "bucket_bytes": self.bucket_bytes}

    @not_converted
    def step(self, rate: Any) -> list[Any]:
        """Pushes the gradients of `pairs` with this learning rate, and assigns the fresh values. Returns
        the operations that have to run for it."""
        gradients, variables = [list(one) for one in zip(*self.pairs)]
        self.pairs = []
        names = [self._name_of(variable) for variable in variables]
        rows = [name for name, one in zip(names, gradients) if isinstance(one, tf.IndexedSlices)]
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return self._step_of_session(gradients, variables, names, rows, rate)
        # A function computes its gradients later, from the values that are assigned here.
        if self._begin_eagerly(variables, names, rows) and tf.executing_eagerly():
            return []
        fresh, self.buckets = server_requests.exchange(gradients, names, rate, self.bucket_bytes)
        return [_assign(variable, value) for variable, value in zip(variables, fresh)]

    def _begin_eagerly(self, variables: Sequence[Any], names: Sequence[str], rows: Sequence[str]) -> bool:
        """Declares new variables. Returns whether their values were replaced."""
        if self._declared.issuperset(names):
            return False
        with tf.init_scope():
            new = {name: one for name, one in zip(names, variables) if name not in self._declared}
            *values, replaced = self._begin(list(new), rows, [one.numpy() for one in new.values()])
            for variable, value in zip(new.values(), values):
                variable.assign(value)
        return bool(replaced)

    def _step_of_session(
        self, gradients: list[Any], variables: list[Any], names: list[str], rows: list[str], rate: Any
    ) -> list[Any]:
        """The operations of a step in a session. If a run replaces values, its gradients come from old and
        new values, so they are not pushed."""

        def begin_in_python(*values: Array) -> list[Any]:
            try:
                with waiting():
                    return self._begin(names, rows, values)
            except RdmacollError as error:
                raise RuntimeError(_text_of(error)) from None

        def begin() -> Any:
            *values, replaced = tf.numpy_function(
                begin_in_python,
                [variable.read_value() for variable in variables],
                [*(variable.dtype.base_dtype for variable in variables), tf.bool],
            )
            replaced.set_shape(())
            for variable, value in zip(variables, values):
                value.set_shape(variable.shape)
            assigned = [variable.assign(value) for variable, value in zip(variables, values)]
            with tf.control_dependencies(map(_to_wait_for, assigned)), tf.device("CPU:0"):
                marked = tf.raw_ops.AssignVariableOp(resource=session, value=tf.constant(True))
            with tf.control_dependencies([marked]):
                return tf.identity(replaced)

        def exchange() -> Any:
            fresh = servers.exchange_undeclared(gradients, names, rate)
            assigned = [_assign(variable, value) for variable, value in zip(variables, fresh)]
            with tf.control_dependencies(map(_to_wait_for, assigned)):
                return tf.constant(True)

        graph = tf.compat.v1.get_default_graph()
        before = graph.get_collection_ref(_DECLARING)
        # Numbers follow the order of declarations, which is that of the program on all workers.
        is_inside = graph.building_function or graph._get_control_flow_context() is not None
        number = self._steps.setdefault(tuple(names), len(self._steps))
        earlier = [] if is_inside else before[-1:]
        with op_scope(), tf.control_dependencies(earlier):
            with tf.device("CPU:0"):
                # A variable of the session, which has a value once this step has begun.
                session = tf.raw_ops.VarHandleOp(
                    dtype=tf.bool, shape=(), shared_name=f"rdmacoll_begun_{self._number}_{number}"
                )
                has_begun = tf.raw_ops.VarIsInitializedOp(resource=session)
            replaced = tf.cond(has_begun, lambda: tf.constant(False), begin)
            for one in earlier:  # gradients may be of these variables, too
                replaced = tf.logical_or(replaced, one)
        if not is_inside:
            before.append(replaced)
        return [tf.cond(replaced, lambda: tf.constant(False), exchange)]

    def _begin(self, names: Sequence[str], rows: Sequence[str], values: Sequence[Array]) -> list[Any]:
        """Declares the variables that the servers do not know. Returns all values, which are the first
        worker's or the servers', and whether they replace others."""
        with self._declaring:
            arrays = {name: np.array(value, order="C") for name, value in zip(names, values)}
            new = {name: array for name, array in arrays.items() if name not in self._declared}
            declared = {name: array for name, array in arrays.items() if name in self._declared}
            for name in new:
                if current().has(name):
                    raise ConfigError(
                        f"variable {name!r} is at the servers already, with the optimizer of its first "
                        "step: continue with that optimizer, or give the variables other names."
                    )
            if new:
                state = State(0, slots_of(self._rule, new))
                current().declare(
                    new, self._rule.text, [name for name in rows if name in new], [], None, state
                )
                self._declared.update(new)
            if declared:
                current().move(mirror.PS_PULL, declared)
        replaced = any(
            not np.array_equal(value, arrays[name], equal_nan=True) for name, value in zip(names, values)
        )
        return [*arrays.values(), np.bool_(replaced)]

    def _name_of(self, variable: Any) -> str:
        """The name of a variable, the same on all workers: its own, with a number if the name repeats."""
        key = variable.ref()
        if key not in self._names:
            plain = variable.name.partition(":")[0]
            _check(variable, plain)
            count = 1 + sum(one.partition("#")[0] == plain for one in self._names.values())
            self._names[key] = plain if count == 1 else f"{plain}#{count}"
        return self._names[key]


class ServerUpdates(WrappedCopies):
    """Mixed in before the optimizer's own class."""

    _rdmacoll_reduce: Exchange  # type: ignore[assignment]

    def _create_slots(self, var_list: Any) -> None:
        """Creates no slots: the servers have them."""

    def _prepare(self) -> None:
        super()._prepare()  # type: ignore[misc]
        self._rdmacoll_reduce.pairs = []

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self._rdmacoll_reduce.pairs.append((grad, var))
        return None if tf.executing_eagerly() else tf.no_op()

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return self._apply_dense(grad, handle)

    def _apply_sparse_duplicate_indices(self, grad: Any, var: Any) -> Any:
        # The servers sum rows of the same index.
        return self._apply_dense(grad, var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Any) -> Any:
        return self._apply_dense(tf.IndexedSlices(grad, indices), handle)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        exchange = self._rdmacoll_reduce
        steps = exchange.step(getattr(self, exchange.rate))
        return tf.group(*map(_to_wait_for, steps), name=name_scope)


def wrap(optimizer: Any, name: str, bucket_bytes: int | None = None) -> None:
    """Changes the class of `optimizer`, or of the optimizer inside of loss scaling. Raises ConfigError for
    an optimizer that servers cannot apply."""
    while (inner := getattr(optimizer, "_optimizer", None)) is not None:
        optimizer = inner
    exchange = Exchange(name, *rule_of(optimizer), bucket_bytes)
    optimizer.__class__ = subclass(type(optimizer), ServerUpdates, exchange)  # type: ignore[arg-type]


def _check(variable: Any, name: str) -> None:
    if np.dtype(variable.dtype.base_dtype.as_numpy_dtype) not in DTYPES:
        raise ConfigError(
            f"variable {name!r} is {variable.dtype.base_dtype.name}, and servers update float32 and float64: "
            "keep it in one of these."
        )
    if getattr(variable, "constraint", None) is not None:
        raise ConfigError(
            f"variable {name!r} has a constraint, which servers do not apply: leave it out, or use sync=True."
        )


def _assign(variable: Any, value: Any) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return variable.scatter_update(value)
    return variable.assign(value)


def _to_wait_for(assigned: Any) -> Any:
    """The operation of an assignment's result, which may be the variable."""
    return getattr(assigned, "op", assigned) if not tf.executing_eagerly() else assigned


def _text_of(error: RdmacollError) -> str:
    """The text of an error as a kernel writes it, so that `error_from` finds it in TensorFlow's status."""
    fields = error_to_fields(error)
    return f"{fields.pop('kind')}: {fields.pop('message')} [rdmacoll {json.dumps(fields)}]"
