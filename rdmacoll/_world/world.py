"""The world of this process: its start, its end, and its ranks."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from rdmacoll._abi import fast_calls
from rdmacoll._abi.library import load
from rdmacoll._abi.settings import Values
from rdmacoll._base import sealed
from rdmacoll._base.exit_cause import ExitCause, is_harmless, last_action
from rdmacoll._base.log import Log
from rdmacoll._base.standard_descriptors import fill_standard_descriptors
from rdmacoll._ps.server_loop import serve
from rdmacoll._ps.variable_servers import variable_servers
from rdmacoll._start import horovod_variables
from rdmacoll._start.bootstrap import Start, find_start, variables
from rdmacoll._start.bootstrap_exchange import has_abandoned_operations
from rdmacoll._start.start_steps import start_engine
from rdmacoll._world import places
from rdmacoll._world.init_options import read_options
from rdmacoll._world.running_engine import Engine, refusal_of
from rdmacoll.errors import ConfigError, RankFailedError, RdmacollError
from rdmacoll.process_set import ProcessSet, bind_static, initial_sets, unbind


class _Process:
    """The state of a process."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.lock = threading.RLock()
        self.exit_cause = ExitCause()
        self.is_hooked = False
        self.is_forked = False
        self.finalizes_mpi = False
        self.has_named_variables = False
        self.had_servers = False
        self.origin: tuple[Any, ...] = ()  # the arguments that chose the world of the last start
        self.sets: list[ProcessSet] = []  # the sets that it had from `init`
        self.poll: Callable[[], None] | None = None  # set in a process that only serves
        self.listeners: list[Callable[[int], None]] = []

    def use(self, engine: Engine | None) -> None:
        """Makes `engine` the running one."""
        self.engine = engine
        fast_calls.use_engine(engine, engine and engine.plain_calls)

    def notify(self, address: int) -> None:
        for listener in self.listeners:
            listener(address)


_PROCESS = _Process()


def current() -> Engine:
    """The running engine. Raises NotInitializedError."""
    engine = _PROCESS.engine
    if engine is None:
        raise refusal()
    return engine


def refusal() -> RdmacollError:
    """The error for a process without an engine."""
    return refusal_of(is_forked=_PROCESS.is_forked)


def on_change(listener: Callable[[int], None]) -> None:
    """Calls `listener` with the engine's address at each start, and with 0 before each end.

    If there is an engine now, it is called at once. Libraries that keep the address use this. Never called in
    a forked child.
    """
    with _PROCESS.lock:
        _PROCESS.listeners.append(listener)
        if _PROCESS.engine is not None:
            listener(_PROCESS.engine.address)


def init(
    comm: Any = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    process_sets: Sequence[ProcessSet | Iterable[int]] | str | None = None,
    placement: str | None = None,
    sync: bool | None = None,
    staleness: int | None = None,
    argv: bool | Sequence[str] = False,
    job_name: str | None = None,
    task_index: int | str | None = None,
    ps_hosts: str | Sequence[str] | None = None,
    worker_hosts: str | Sequence[str] | None = None,
    protocol: str | None = None,
    **settings: object,
) -> None:
    """Joins the world that the launcher describes. Every rank has to call it.

    - comm: an mpi4py communicator whose ranks form the world
    - rank, size, rendezvous: a start by hand, as RDMACOLL_RANK, _SIZE and _RENDEZVOUS
    - process_sets: sets of ranks that exist from the start, the same on every rank; `add_process_set` adds
      others
    - placement, sync, staleness: RDMACOLL_SERVER_PLACEMENT, _PS_SYNC and _PS_STALENESS
    - settings: any setting that `rdmacoll config` lists, without its prefix and in small letters
      (`init(transport="tcp")`)
    - job_name ("ps" or "worker"), task_index, ps_hosts, worker_hosts: a start by hand with parameter servers;
      each list is a sequence of host:port or a text with commas, the same in every process
    - protocol: the protocol of TensorFlow's servers (grpc, grpc+verbs, grpc+mpi, grpc+gdr)
    - argv: True, or a list of words, if flags give job_name and the arguments after it (the last one is
      --server_protocol); sys.argv stays unchanged

    A second call without arguments does nothing. With mode="ps" TF_CONFIG counts, too. After `shutdown()`, a
    call that names the same world and no `process_sets` restores the sets that `init` was given before, so
    that the ProcessSet objects stay valid. `process_sets=[]` restores none.

    With mode="ps" the last `num_servers` ranks are parameter servers. On a server `init()` does not return.
    It serves until the workers are done. Then it ends the process with exit status 0 (SystemExit), or raises
    the RankFailedError that names the failed rank. `rank()`, `size()` and the like count the workers.

    Raises ConfigError for a wrong argument, setting or environment, also if it is another rank's. Raises
    RankFailedError when a rank dies meanwhile. Ctrl-C ends the start on every rank.
    """
    lists = {"job_name": job_name, "task_index": task_index, "ps_hosts": ps_hosts}
    lists |= {"worker_hosts": worker_hosts, "protocol": protocol}
    with _PROCESS.lock:
        if _PROCESS.is_forked:
            raise refusal()
        if _PROCESS.engine is not None:
            arguments = comm, rank, size, rendezvous, process_sets, placement, sync, staleness
            if not settings and not argv and all(one is None for one in (*arguments, *lists.values())):
                return
            raise ConfigError("rdmacoll is already initialised: call shutdown() before another init().")
        if _PROCESS.had_servers and comm is None:
            raise ConfigError(
                "the parameter servers of this worker have ended with its first world: with parameter "
                "servers, init() can be called once. Start the job again, or give init() a communicator of "
                "the workers."
            )
        origin = (comm, rank, size, rendezvous, argv, *lists.values())
        restored = places.kept(_PROCESS.sets) if process_sets is None and origin == _PROCESS.origin else []
        by_hand = {"comm": comm, "rank": rank, "size": size, "rendezvous": rendezvous}
        settings = {"server_placement": placement, "ps_sync": sync, "ps_staleness": staleness, **settings}
        try:
            engine = places.started(_started, by_hand, restored or process_sets, settings, argv, lists)
        except RdmacollError as error:
            _hook()
            _PROCESS.exit_cause.hide_traceback(error)
            raise
        _PROCESS.origin = origin
        engine.restored_sets.update(engine.process_sets if restored else ())
    _register_ops()
    if engine.is_server:
        _serve(engine)


def _started(
    by_hand: dict[str, Any],
    process_sets: Sequence[ProcessSet | Iterable[int]] | str | None,
    settings: dict[str, object],
    argv: bool | Sequence[str],
    lists: dict[str, Any],
) -> Engine:
    """Starts the engine of this process, and returns it when the world stands. Arguments as in `init`."""
    library = load()
    places.take(**by_hand)
    options = read_options(library, process_sets, settings, by_hand=by_hand, argv=argv, lists=lists)
    places.check(options.values)
    start = start_of(**by_hand, listed=options.listed, values=options.values)
    settings_error = start.start_error(
        options.settings_error, options.values, serves=_PROCESS.poll is not None
    )
    with start.report_if_slow(settings_error, options.values):
        exchange = start.exchange(options.values)
        servers = variable_servers(library, start.launch, options.values) if settings_error is None else None
        try:
            with options.naming_protocol():
                address, secret = start_engine(
                    library, exchange, start.launch, options.arguments, settings_error, servers
                )
        except BaseException as error:
            if isinstance(error, RankFailedError) or not isinstance(error, Exception):
                note_failure()
            raise
        else:
            engine = Engine(library, address, options.values)
            _PROCESS.use(engine)
            engine.hold_address(exchange)
            engine.is_started_by_mpi = start.comm is not None
            engine.object_key = sealed.key_of(secret)
        finally:
            exchange.close()
    _PROCESS.exit_cause.reset()
    _PROCESS.had_servers = engine.servers > 0 or servers is not None
    engine.variable_servers = servers and servers.begin()
    bind_static(engine, process_sets)
    _PROCESS.notify(address)
    start.log_start(options.values, options.note)
    if start.launch.rank == 0:
        _name_horovods_variables(options.values)
    return engine


def _name_horovods_variables(values: Values) -> None:
    """Logs once in a process what Horovod's variables do here."""
    if not _PROCESS.has_named_variables:
        _PROCESS.has_named_variables = True
        log = Log(values.text("RDMACOLL_LOG"), 0)
        for line in horovod_variables.lines(variables(), values):
            log.notice(line)


def _register_ops() -> None:
    """Registers the ops if TensorFlow is imported, so that saved graphs with these ops load."""
    if hasattr(sys.modules.get("tensorflow"), "load_op_library"):
        importlib.import_module("rdmacoll.ops._library").register()


def serve_only(poll: Callable[[], None]) -> None:
    """Marks this process as a server without a script, which `init()` makes no worker."""
    _PROCESS.poll = poll


def _serve(engine: Engine) -> None:
    """Serves as a parameter server until the end, and then exits the process."""
    with engine.held() as address:
        if not serve(
            engine.library, address, engine.variable_servers, leave, _PROCESS.exit_cause, _PROCESS.poll
        ):
            note_failure()
    shutdown()
    sys.exit(0)


def start_of(comm: Any = None, **by_hand: Any) -> Start:
    """The start of this process, as `find_start`. MPI that this call initialises is finalised at exit."""
    fill_standard_descriptors()
    with _PROCESS.lock:
        start = find_start(comm, **by_hand)
        _hook()
        _PROCESS.finalizes_mpi = _PROCESS.finalizes_mpi or start.owns_mpi
        return start


def _end(cause: str | None) -> None:
    with _PROCESS.lock:
        engine = _PROCESS.engine
        if engine is None:
            return
        _PROCESS.use(None)
        _PROCESS.notify(0)
        _PROCESS.sets = initial_sets(engine)
        unbind(engine)
        servers = engine.variable_servers
        try:
            if servers is not None:
                servers.blame(engine.address if engine.is_open else 0)
                if not is_harmless(cause or ""):
                    engine.close(cause)  # first: this failure ends servers of other processes
                if not servers.close(engine.address if engine.is_open else 0, cause):
                    note_failure()
        finally:
            engine.close(cause)
        engine.release(id(_PROCESS))  # ends the hold of `leave`
        places.give_up()


def shutdown() -> None:
    """Leaves the world. Pending operations fail with ShutdownError. `init()` may follow. Bounded in time."""
    if not _PROCESS.is_forked:
        _end(last_action() or None)


def leave(cause: str) -> None:
    """Ends communication with a failure that all other ranks hear. rank() and size() still answer."""
    with _PROCESS.lock:
        engine = _PROCESS.engine
        if engine is not None and engine.is_open:
            note_failure()
            engine.hold(id(_PROCESS))  # ops know the engine's address until the end
            if engine.variable_servers is not None:
                engine.variable_servers.end()
            engine.close(cause)


def _hook() -> None:
    """Installs the hooks that end the world with the process. Does so once."""
    if _PROCESS.is_hooked:
        return
    _PROCESS.is_hooked = True
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)
    _PROCESS.exit_cause.install_hooks(_leave)


def _after_fork() -> None:
    if _PROCESS.engine is not None:
        # The child keeps the parent's engine, and never closes or frees it: its thread does not exist here.
        _PROCESS.engine.release_in_child()
        _PROCESS.use(None)
    # Also after shutdown(): MPI belongs to the parent, and MPI_Finalize would hang in the child.
    _PROCESS.is_forked = True
    _PROCESS.finalizes_mpi = False
    _PROCESS.lock = threading.RLock()


def note_failure() -> None:
    """Notes that another rank has failed. MPI_Finalize would wait for that rank, so it is not called."""
    _PROCESS.finalizes_mpi = False


def _leave() -> None:
    if not _PROCESS.is_forked:
        _end(_PROCESS.exit_cause.cause())


def _at_exit() -> None:
    failed = _PROCESS.exit_cause.is_exception
    _leave()
    if _PROCESS.finalizes_mpi and not failed and not has_abandoned_operations():
        module = sys.modules.get("mpi4py.MPI")
        if module is not None and module.Is_initialized() and not module.Is_finalized():
            module.Finalize()


def is_initialized() -> bool:
    """Whether this process is in a world."""
    return _PROCESS.engine is not None


def rank() -> int:
    """This process's number among all workers, from 0."""
    return current().topology[0]


def size() -> int:
    """The number of workers. Parameter servers do not count."""
    return current().topology[1]


def local_rank() -> int:
    """This process's number among the workers of its node, from 0."""
    return current().topology[2]


def local_size() -> int:
    """The number of workers on this node. Processes that cannot share memory are on different nodes."""
    return current().topology[3]


def cross_rank() -> int:
    """The number of this process's node among all nodes with workers, from 0."""
    return current().topology[4]


def cross_size() -> int:
    """The number of nodes with workers."""
    return current().topology[5]


def metrics() -> dict[str, int | float]:
    """Totals since init(): whole numbers, and seconds for the names that end in `_s`.

    - `bytes_reduced_beside_sends`: the part of `bytes_reduced` while this rank's data was in transit
    - `bytes_striped`: the part of `bytes_sent` that went over additional TCP streams
    - `bytes_staged`: bytes copied between host memory and GPUs, by copies or by `kernel_launches`
    - `bytes_written_to_gpus`: bytes of small results that the processor wrote to GPUs itself (GDRCopy)
    - `bytes_between_gpus`: bytes that GPUs read from the memory on GPUs of other ranks of the node
    - `gpus_preparing`: kernels or memory that are being made ready on GPUs, whose arrays are staged meanwhile
    - `bytes_direct_sent`, `bytes_direct_received`: bytes that NICs read from memory of GPUs, and wrote there
    - `results_shared`: sums that the node stores once
    - `batches_in_place`: batches for which ranks of the node may read each other's arrays (one-copy reads)
    - `core_moves`: how often a caller has left the core of another rank that waited there, too
    - `communication_s`: the sum of `communication_waiting_s`, for late ranks, and `communication_moving_s`
    """
    engine = current()
    with engine.held() as address:
        return engine.library.engine_metrics(address)


def describe() -> dict[str, Any]:
    """The engine's transport and determinism level, its servers, and a summary for people."""
    engine = current()
    with engine.held() as address:
        return engine.library.engine_describe(address)


def state() -> str:
    """Pending operations, batches and transfers, as text for people."""
    engine = current()
    with engine.held() as address:
        return engine.library.engine_state(address)
