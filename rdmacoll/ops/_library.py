"""Loads librdmacoll_tf.so into TensorFlow and keeps it attached to the running engine."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import tensorflow as tf

from rdmacoll._abi import library
from rdmacoll._base.once import once
from rdmacoll._world import world
from rdmacoll.errors import ConfigError
from rdmacoll.ops import _gpu_op, _sessions
from rdmacoll.ops._interrupts import SignalWatcher

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

    _sessions.raise_typed_errors()
    world.on_change(attach)
    world.on_change(SignalWatcher(shared).attach)
    return module


def register() -> None:
    """Registers the ops with TensorFlow, so that saved graphs with them load. `import rdmacoll.ops` has
    registered their gradients. If this fails, the first op that is called raises the reason."""
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
