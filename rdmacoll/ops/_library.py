"""Loads librdmacoll_tf.so into TensorFlow and keeps it attached to the running engine."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import tensorflow as tf

from rdmacoll._abi import library
from rdmacoll._base.once import once
from rdmacoll._world import world
from rdmacoll.errors import ConfigError, RdmacollError, error_from
from rdmacoll.ops import _gpu_op
from rdmacoll.ops._interrupts import SignalWatcher

# Without this, AutoGraph replaces exceptions by one of its own, unless their class is one of Python's.
RdmacollError.ag_pass_through = True  # type: ignore[attr-defined]

_SCOPE = "rdmacoll/"  # with the slash it is outside of all other scopes; place.cc searches for it

_F = TypeVar("_F", bound=Callable[..., Any])


def not_converted(function: _F) -> _F:
    """`function` without AutoGraph, which would find nothing to convert and takes time."""
    return cast(_F, tf.autograph.experimental.do_not_convert(function))


def library_path() -> Path:
    """The path of the op library, beside the engine's."""
    return library.library_path().with_name("librdmacoll_tf.so")


@once
def _load() -> Any:
    path = library_path()
    if not path.exists():
        raise ConfigError(
            f"{path} is missing: rdmacoll has been built without its TensorFlow ops. Build it with "
            "`make setup`, or install the package with `pip install .`."
        )
    try:
        module = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        raise ConfigError(f"TensorFlow {tf.__version__} cannot load {path}: {error.message}.") from None
    shared = ctypes.CDLL(str(path))
    shared.rc_tf_problem.restype = ctypes.c_char_p
    shared.rc_tf_attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    shared.rc_tf_attach_servers.argtypes = [ctypes.c_void_p]
    problem = shared.rc_tf_problem()
    if problem is not None:
        raise ConfigError(f"TensorFlow {tf.__version__}: {problem.decode()}.")
    # Ranks with kernels for GPUs do not share results in host memory, and no tensor lies on a GPU here
    # without one.
    if tf.test.is_built_with_cuda() and tf.config.get_visible_devices("GPU"):
        _gpu_op.register(shared)
    table = library.load().table_address

    def attach(engine: int) -> None:
        if shared.rc_tf_attach(table, engine) != 0:
            raise ConfigError(
                f"{path} and {library.library_path()} come from different builds. {library.BUILD_AGAIN}"
            )
        servers = world.current().variable_servers if engine else None
        if servers is not None and servers.session is not None:
            shared.rc_tf_attach_servers(servers.session.address)

    from rdmacoll.ops import _sessions

    _sessions.raise_typed_errors()
    world.on_change(attach)
    world.on_change(SignalWatcher(shared).attach)
    return module


def register() -> None:
    """Registers the ops and their gradients with TensorFlow, so that saved graphs with them load. If this
    fails, the first op that is called raises the reason."""
    importlib.import_module("rdmacoll.ops")  # the gradients
    with contextlib.suppress(ConfigError):
        _load()


def ops() -> Any:
    """The generated functions of the op library. Raises NotInitializedError before `init()`."""
    world.current()
    _refuse_xla()
    return _load()


def _refuse_xla() -> None:
    if tf.executing_eagerly():
        return
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise ConfigError(
            "a collective cannot be compiled by XLA, and this function is traced with "
            "jit_compile=True. Leave jit_compile off where you call rdmacoll. A function of its "
            "own that only computes gradients may have jit_compile=True."
        )


def must_run(outputs: list[Any]) -> list[Any]:
    """Makes the op of `outputs` run even if this rank does not use its result. Another rank may use
    its own, and would wait. The op is not stateful, since TensorFlow would then chain all collectives of a
    function."""
    if not tf.executing_eagerly() and outputs[0].graph.building_function:
        outputs[0].graph.control_outputs.append(outputs[0].op)
    return outputs


def op_scope() -> Any:
    """A context for building an op. The op's node gets none of the names of the scopes around it. So
    TensorFlow itself has put there everything before _SCOPE in the name of its kernel, for calls and
    loops."""
    return contextlib.nullcontext() if tf.executing_eagerly() else tf.name_scope(_SCOPE)


# Classes that are both of ours and of TensorFlow's.
_CLASSES_OF_BOTH: dict[tuple[type[RdmacollError], Any], type[RdmacollError]] = {}
# The fields of TensorFlow's errors.
_STATUS: dict[str, Any] = {
    "_node_def": None,
    "_op": None,
    "_experimental_payloads": {},
    "_message": "",
    "_error_code": 0,
}


def _class_of_both(plain: type[RdmacollError], status: Any) -> type[RdmacollError]:
    found = _CLASSES_OF_BOTH.get((plain, status))
    if found is None:
        members = {"__module__": plain.__module__, "__doc__": plain.__doc__, "__reduce__": _reduce}
        found = _CLASSES_OF_BOTH[plain, status] = type(plain.__name__, (plain, status), members)
    return found


def _reduce(error: RdmacollError) -> Any:
    """Pickles the error as the plain one."""
    return error.plain().__reduce__()


def of_both(typed: RdmacollError, status: tf.errors.OpError) -> RdmacollError:
    """The error `typed` as one that is also of TensorFlow's class of `status`."""
    both = _class_of_both(type(typed), type(status))
    error = both.__new__(both, *typed.args)
    vars(error).update({**_STATUS, **vars(typed), "_message": str(typed), "_error_code": status.error_code})
    error.of_own_class = typed
    return error


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Eager calls raise our class, which is also TensorFlow's class for that status. In a graph only the
    status is possible."""
    try:
        yield
    except tf.errors.OpError as error:
        typed = error_from(error)
        if typed is None or isinstance(error, RdmacollError):  # it has both classes already
            raise
        typed = of_both(typed, error)
        try:
            raise typed from None
        finally:
            del typed  # otherwise the error and this frame would keep each other alive
