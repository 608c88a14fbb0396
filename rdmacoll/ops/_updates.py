"""The op that counts an optimizer's updates in graphs, and the other functions of the op library about them
(cpp/tensorflow/applied.h)."""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from rdmacoll._abi.arguments import Array, address_of
from rdmacoll._base.once import once
from rdmacoll.errors import error_to_fields
from rdmacoll.ops._interrupts import waiting
from rdmacoll.ops._library import _load, library_path, op_scope, ops

NEVER = 2**63 - 1  # no update has this number, so the listener is not called
_LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_COMPARES: dict[str, weakref.WeakMethod[Callable[[], None]]] = {}  # by the optimizer's name
# An attribute of graphs: by name of the op, the handles of the variables that are read when it calls. They
# hold the graph, so a dictionary beside it would keep it.
_HANDLES = "_rdmacoll_update_handles"


@once
def _shared() -> Any:
    _load()
    shared = ctypes.CDLL(str(library_path()))
    shared.rc_tf_fail_update.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    shared.rc_tf_count_update.argtypes = [ctypes.c_char_p]
    shared.rc_tf_updates.argtypes = [ctypes.c_char_p]
    shared.rc_tf_updates.restype = ctypes.c_int64
    shared.rc_tf_set_due.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    shared.rc_tf_set_updates.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    shared.rc_tf_fingerprint.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    shared.rc_tf_fingerprint.restype = ctypes.c_uint64
    shared.rc_tf_listen_to_updates(_on_update_due)
    _order_after_assignments()
    return shared


@_LISTENER
def _on_update_due(name: bytes, run: int) -> None:
    try:
        with waiting():
            _compare(name.decode())
    except BaseException as error:  # the kernel raises it
        _shared().rc_tf_fail_update(run, json.dumps(error_to_fields(error)).encode())


def register_comparison(name: str, compare: Callable[[], None]) -> None:
    """Registers `compare`, a method, for the updates of optimizer `name` that are due. It is called after
    them as long as its object exists. An exception that it raises fails the step."""
    _COMPARES[name] = weakref.WeakMethod(compare)


def _compare(name: str) -> None:
    compare = _COMPARES[name]()
    if compare is not None:
        compare()


def start_counting(name: str, due: int) -> None:
    """Restarts the count of optimizer `name`: the next update is number 1. due: the first update to
    compare after."""
    _shared().rc_tf_set_updates(name.encode(), 0)
    _shared().rc_tf_set_due(name.encode(), due)


def set_due(name: str, due: int) -> None:
    """Sets the number of the update after which the comparison is called next."""
    _shared().rc_tf_set_due(name.encode(), due)


def updates(name: str) -> int:
    """The number of updates that optimizer `name` has applied."""
    return int(_shared().rc_tf_updates(name.encode()))


def count_and_check_due(name: str) -> bool:
    """Counts an update, and returns whether it is due."""
    return bool(_shared().rc_tf_count_update(name.encode()))


def count_update(name: str, variables: Sequence[Any]) -> None:
    """Counts an update that is applied here: now, or whenever the traced function runs. variables:
    `tf.Variable` objects. The comparison comes after assignments to them that are built before this call,
    and before those that are built later."""
    if tf.executing_eagerly():
        if count_and_check_due(name):
            with waiting():
                _compare(name)
        return
    graph = tf.compat.v1.get_default_graph()
    handles = [graph.capture(one.handle) for one in variables if hasattr(one, "handle")]
    op = count_op(name)
    if not hasattr(graph, _HANDLES):
        setattr(graph, _HANDLES, {})
    getattr(graph, _HANDLES)[op.name] = handles


def count_op(name: str) -> Any:
    """An op that counts an update whenever it runs."""
    _shared()
    with op_scope(), tf.device("CPU:0"):
        return ops().rdmacoll_applied(optimizer=name)


def _order_after_assignments() -> None:
    """Tells TensorFlow which variables the op reads, since TensorFlow orders the ops of a function by
    their variables. The op has no handles as inputs: TensorFlow would place it on the device of each of
    them."""
    from tensorflow.python.framework import auto_control_deps

    @auto_control_deps.register_acd_resource_resolver
    def _rdmacoll_applied(op: Any, reads: Any, writes: Any) -> bool:
        del reads
        if op.type != "RdmacollApplied":
            return False
        handles = [_origin(handle) for handle in getattr(op.graph, _HANDLES, {}).get(op.name, [])]
        # The op only reads them. Readers have no order among each other. But the next op of its name may not
        # count before the next comparison is set. So the op is declared as a writer.
        missing = [handle for handle in handles if handle not in writes]
        writes.update(missing)
        return bool(missing)


def _origin(handle: Any) -> Any:
    # TensorFlow replaces a handle after an Identity by the tensor before it, and asks again.
    while handle.op.type == "Identity":
        handle = handle.op.inputs[0]
    return handle


def fingerprint(array: Array) -> int:
    """A hash of the bytes of a contiguous array, of any dtype."""
    if array.nbytes == 0:
        return 0
    return int(_shared().rc_tf_fingerprint(address_of(array), array.nbytes))
