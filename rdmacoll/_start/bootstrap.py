"""Decides how this process starts. Only this file and cpp/settings/read_config.cc read the environment.

Order of precedence: arguments of `init()`, RDMACOLL_RANK and the like, MPI, Slurm, torchrun, and with
parameter servers TF_CONFIG. Without any of these the world has one rank. A launcher that started one process
hides no launcher that started several. If a launcher says N while MPI says 1, or describes this process only
in part, the start fails. Otherwise N worlds of one would silently train N models.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdmacoll._abi.library import load
from rdmacoll._abi.settings import Values
from rdmacoll._base import threads
from rdmacoll._base.log import Log
from rdmacoll._start import cluster as cluster_rules, elastic_worker, launch as launch_rules, start_deadline
from rdmacoll._start.bootstrap_exchange import BootstrapExchange, MpiExchange, SingleRankExchange
from rdmacoll._start.cluster import ClusterOptions
from rdmacoll._start.inherited import MARK, check_inherited, mark_of, without_launch
from rdmacoll._start.init_notice import tell_launcher
from rdmacoll._start.launch import BY_ARGUMENTS, BY_RUN, BY_VARIABLES, OPEN_MPI, Launch
from rdmacoll._start.mpi_rendezvous import by_mpi_and_address, launch_without_mpi
from rdmacoll._start.pmi import meet
from rdmacoll._start.rendezvous import TcpExchange
from rdmacoll._start.secret import SECRET_BYTES, read_secret
from rdmacoll._start.single_process_check import check_single_process
from rdmacoll.errors import ConfigError, RdmacollError

# An MPI that runs out of descriptors at its start may crash. Open MPI 4 takes a dozen.
_MPI_DESCRIPTORS = 32
_RENDEZVOUS_DESCRIPTORS = 12  # sockets, their selectors, and the secret's file
_ANNOUNCE_S = 3.0
_BY_HAND = (BY_ARGUMENTS, BY_VARIABLES, BY_RUN)


class Start:
    """The decided start: the launch, and the communicator if MPI carries the texts."""

    def __init__(self, launch: Launch, comm: Any = None, *, owns_mpi: bool = False) -> None:
        self.launch = launch
        self.comm = comm
        self.owns_mpi = owns_mpi  # we imported mpi4py first, so no other code finalises MPI

    def log_start(self, values: Values, note: str = "") -> None:
        """Logs once how this world was started, and then the `note`, after rank 0's line about devices."""
        log = Log(values.text("RDMACOLL_LOG"), self.launch.rank)
        write = log.notice if self.launch.rank == 0 and self.launch.size > 1 else log.info
        write(f"started by {self.launch.describe()}.")
        if note:
            write(note)

    def start_error(
        self, settings_error: RdmacollError | None, values: Values, *, serves: bool
    ) -> RdmacollError | None:
        """The error that prevents this world, which the other ranks hear: this rank's `settings_error`, or
        the error of a process that only `serves` but is no server."""
        return self._not_a_server_error(values) if settings_error is None and serves else settings_error

    @contextmanager
    def report_if_slow(self, settings_error: RdmacollError | None, values: Values) -> Iterator[None]:
        """Logs `settings_error` here, too, if it takes long until the other ranks have come to hear it."""
        if settings_error is None or self.launch.size == 1:
            yield
            return
        log = Log(values.text("RDMACOLL_LOG"), self.launch.rank)
        text = f"{settings_error} This rank waits for the other ranks, so that they get this error too."
        timer = threading.Timer(_ANNOUNCE_S, log.warning, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _not_a_server_error(self, values: Values) -> ConfigError | None:
        launch, servers = self.launch, int(values.number("RDMACOLL_NUM_SERVERS"))
        if launch.size == 1:
            return ConfigError(
                "this server does not know its workers: give --task_index, --ps_hosts and --worker_hosts, "
                "or start it beside workers (mpirun -np 2 python train.py : -np 1 rdmacoll serve)."
            )
        if values.text("RDMACOLL_SERVER_PLACEMENT") == "colocated":
            return ConfigError(
                "RDMACOLL_SERVER_PLACEMENT=colocated makes every worker a server. Unset it, or set it to "
                "dedicated."
            )
        if launch.rank >= launch.size - servers:
            return None
        return ConfigError(
            f"{launch.name(launch.rank)} is no parameter server: the last {servers} of {launch.size} ranks "
            f"are ({launch.source}). Start the script on this rank."
        )

    def exchange(self, values: Values) -> BootstrapExchange:
        """The channel between the ranks. Raises ConfigError."""
        log = Log(values.text("RDMACOLL_LOG"), self.launch.rank)
        name, secret = secrets.token_hex(8), secrets.token_bytes(SECRET_BYTES)
        timeout_s = values.number("RDMACOLL_START_TIMEOUT_S")
        if self.comm is not None:
            return MpiExchange(self.comm, name, secret, timeout_s)
        if self.launch.size == 1:
            return SingleRankExchange(name, secret)
        is_by_hand = self.launch.source in _BY_HAND or bool(self.launch.hosts)
        if is_by_hand and not values.is_set("RDMACOLL_START_TIMEOUT_S"):
            timeout_s = start_deadline.BY_HAND_S
        # Rank 0 has a connection from each other rank.
        load().check_descriptors(_RENDEZVOUS_DESCRIPTORS + (self.launch.size if self.launch.rank == 0 else 0))
        secret = self.launch.secret if not values.is_set("RDMACOLL_SECRET_FILE") else b""
        file_secret = secret or read_secret(values.text("RDMACOLL_SECRET_FILE"))
        name = values.text("RDMACOLL_JOB_ID") if values.is_set("RDMACOLL_JOB_ID") else self.launch.job
        tell_launcher(os.environ, self.launch)
        return TcpExchange(
            replace(self.launch, job=name),
            file_secret,
            timeout_s,
            log,
            is_by_hand=is_by_hand,
            silence_s=values.number("RDMACOLL_PEER_TIMEOUT_S"),
            shares_port=self._shares_port(values),
            called_off=lambda: elastic_worker.called_off(os.environ),
        )

    def _shares_port(self, values: Values) -> bool:
        """Whether the engine shall listen at the rendezvous port, for firewalls that open only this port."""
        _, port = launch_rules.split_address(self.launch.rendezvous)
        return values.is_set("RDMACOLL_PORT") and int(values.number("RDMACOLL_PORT")) == port


def _import_mpi() -> tuple[Any, bool]:
    """(the module, whether this is its first import). MPI itself may not be initialised yet.

    Raises ImportError, RuntimeError.
    """
    first = "mpi4py.MPI" not in sys.modules
    if first:
        import mpi4py

        # An MPI under another MPI's launcher may abort the process, so first look at its name.
        mpi4py.rc.initialize = False
        # After a failure MPI_Finalize would wait for ranks that are gone. world.py calls it after a clean
        # end only.
        mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI, first


def _initialized(mpi: Any, timeout_s: float | None = None) -> Any:
    """The module, after MPI is initialised. MPI_Init waits for all ranks of the job and cannot be cancelled.
    So Ctrl-C or the end of `timeout_s` ends the process."""
    if not mpi.Is_initialized():
        done = threading.Event()
        threads.start(threading.Thread(target=_watch_until, args=(done, timeout_s), daemon=True))
        try:
            with _ended_by_interrupt():
                _init_thread(mpi)
        finally:
            done.set()
    return mpi


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Lets Ctrl-C end the process. Otherwise Python would act on it only after the C call has returned."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _init_thread(mpi: Any) -> None:
    # mpi4py would keep the GIL meanwhile, and no thread could report the wait.
    try:
        call = ctypes.CDLL(mpi.__file__).MPI_Init_thread
    except (AttributeError, OSError):  # mpi4py loads this MPI in another way
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        return
    if call(None, None, int(mpi.THREAD_MULTIPLE), ctypes.byref(ctypes.c_int())) != 0:
        raise RuntimeError("MPI_Init_thread failed")
    for comm in (mpi.COMM_SELF, mpi.COMM_WORLD):  # as mpi4py does, so that errors become exceptions
        comm.Set_errhandler(mpi.ERRORS_RETURN)


def _watch_until(done: threading.Event, timeout_s: float | None) -> None:
    launch = launch_rules.by_mpi(os.environ)
    log = Log(os.environ.get("RDMACOLL_LOG", "warning"), launch.rank if launch else -1)
    deadline = start_deadline.StartDeadline(timeout_s, log)
    while not done.wait(start_deadline.REPORT_EVERY_S / 10):
        deadline.report("waiting in MPI_Init for the other ranks of this MPI job to reach init()")
        if deadline.is_over():
            log.error(
                f"not all ranks of this MPI job reached init() {deadline.limit_text()}: some rank is late "
                "or has ended. MPI_Init cannot be cancelled, so this process ends."
            )
            os._exit(1)


def mpi_module() -> Any:
    """mpi4py's MPI, for benchmarks and tests that compare with it. Raises ConfigError."""
    try:
        return _initialized(_import_mpi()[0])
    except (ImportError, RuntimeError) as error:
        raise ConfigError(f"mpi4py cannot be imported: {error}. pip install 'rdmacoll[mpi]'") from None


def _mpi_is_active() -> bool:
    """Whether the user's program already uses an MPI with several ranks."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return False
    return bool(module.COMM_WORLD.Get_size() > 1)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].strip(" \0")


def _start_with_mpi(launch: Launch, environ: Mapping[str, str], timeout_s: float | None) -> Start | None:
    """The start over COMM_WORLD. None if MPI does not fit and Slurm can start instead."""
    if "mpi4py.MPI" not in sys.modules:
        load().check_descriptors(_MPI_DESCRIPTORS)
    slurm = launch_rules.by_slurm(environ)
    can_do_without = slurm is not None and slurm.size == launch.size
    try:
        mpi, first = _import_mpi()
    except (ImportError, RuntimeError) as error:
        if launch.size == 1 or can_do_without:
            return None
        return Start(meet(launch, environ, timeout_s) or launch_without_mpi(launch, environ, str(error)))
    if mpi.Is_finalized():
        raise ConfigError("MPI is already finalised in this process: call init() before MPI_Finalize.")
    version = _first_line(mpi.Get_library_version())
    world = mpi.COMM_WORLD
    if launch.source == OPEN_MPI and OPEN_MPI not in version and not mpi.Is_initialized():
        difference = "is not that MPI"
    elif _initialized(mpi, timeout_s) and world.Get_size() != launch.size:
        difference = f"says rank {world.Get_rank()} of {world.Get_size()}"
    else:
        return Start(
            replace(launch, source=launch_rules.with_version(launch.source, version), rank=world.Get_rank()),
            world,
            owns_mpi=first,
        )
    if can_do_without:
        return None
    raise ConfigError(
        f"{launch.source} says that this is rank {launch.rank} of {launch.size}, but mpi4py's MPI "
        f"({version}) {difference}: each process would be a world of its own. Use the mpirun of that MPI, or "
        "install mpi4py for the launcher's."
    )


def find_start(
    comm: Any = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    listed: Launch | None = None,
    environ: Mapping[str, str] | None = None,
    values: Values | None = None,
) -> Start:
    """The start of this process, by the order of precedence above. Raises ConfigError.

    listed: the result of `find_lists`. MPI_Init may last as long as RDMACOLL_START_TIMEOUT_S of `values`, if
    the user set it. Otherwise there is no limit: the launcher watches its processes, and does not end slow
    ones.
    """
    environ = os.environ if environ is None else environ
    if comm is not None:
        if rank is not None or size is not None or rendezvous is not None:
            raise ConfigError("init() takes comm, or rank, size and rendezvous, not both.")
        if not hasattr(comm, "Iallgatherv"):
            raise ConfigError(f"comm={comm!r} is not a communicator of mpi4py.")
        if not comm:  # mpi4py's MPI_COMM_NULL, and freed communicators
            raise ConfigError(
                "comm is MPI.COMM_NULL: this process is not in the communicator. Call init() with it only on "
                "its members."
            )
        if comm.Is_inter():
            raise ConfigError("comm is an intercommunicator: pass comm.Merge(), one group of ranks.")
        return Start(Launch("the given MPI communicator", comm.Get_rank(), comm.Get_size()), comm)
    if listed is not None:
        return Start(listed)
    if rank is None and size is None:
        check_inherited(environ)
    launch = by_mpi_and_address(environ, rendezvous) if rank is None and size is None else None
    launch = launch or launch_rules.by_hand(environ, rank=rank, size=size, rendezvous=rendezvous)
    if launch is not None:
        return Start(launch)
    found = launch_rules.by_launchers(environ)
    if _mpi_is_active() and not any(launch.is_mpi for launch in found):
        world = sys.modules["mpi4py.MPI"].COMM_WORLD
        found.insert(0, Launch("MPI", world.Get_rank(), world.Get_size(), is_mpi=True))
    timeout_s = values.number_if_set("RDMACOLL_START_TIMEOUT_S") if values else None
    if all(launch.size == 1 for launch in found):
        check_single_process(environ, is_launched=bool(found))
    for launch in found:
        start = _start_with_mpi(launch, environ, timeout_s) if launch.is_mpi else Start(launch)
        if start is not None:
            return start
    return Start(Launch("no launcher", 0, 1))


def find_lists(
    options: ClusterOptions,
    values: Values,
    *,
    has_explicit_start: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Launch | None:
    """The start that lists of hosts describe. Raises ConfigError.

    The lists come from arguments and flags. In mode ps they come from TF_CONFIG if nothing else names the
    ranks. has_explicit_start: `init` was given a communicator, or rank and size.
    """
    environ = os.environ if environ is None else environ
    is_colocated = values.text("RDMACOLL_SERVER_PLACEMENT") == "colocated"
    if options.has_lists():
        if has_explicit_start:
            raise ConfigError(
                "init() takes comm, or rank, size and rendezvous, or lists of hosts, not two of them."
            )
        return cluster_rules.launch_of(options, is_colocated=is_colocated)
    variable = environ.get("TF_CONFIG", "")
    if has_explicit_start or not variable.strip() or values.text("RDMACOLL_MODE") != "ps":
        return None
    if launch_rules.by_hand(environ) is not None or _mpi_is_active():
        return None
    if any(launch.size > 1 for launch in launch_rules.by_launchers(environ)):
        return None
    check_inherited(environ)
    variables = cluster_rules.tf_config_options(variable)
    return cluster_rules.launch_of(variables, is_colocated=is_colocated) if variables else None


def described_launch(environ: Mapping[str, str] | None = None) -> Launch | None:
    """The start that variables describe, without starting anything. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    launch = by_mpi_and_address(environ) or launch_rules.by_hand(environ)
    return launch or next(iter(launch_rules.by_launchers(environ)), None)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, for a program that it starts and that is no rank of this job.

    It has no variables of launchers, of TF_CONFIG and of starts by hand. `extra` is added. If the program
    calls `init()`, it is a world of its own.

        subprocess.run([sys.executable, "evaluate.py"], env=rdmacoll.clean_environment())
    """
    return {**without_launch(os.environ), **(extra or {})}


def variables() -> dict[str, str]:
    """This process's environment, for callers that only read it."""
    return dict(os.environ)


def own_variables() -> MutableMapping[str, str]:
    """This process's environment, for a worker of an elastic job."""
    return os.environ


def mark_children(rank: int | None) -> None:
    """Marks programs that this process starts from now on as children of this rank. None: no mark."""
    os.environ.pop(MARK, None)
    if rank is not None:
        os.environ[MARK] = mark_of(rank, os.environ)


def cache_folder() -> Path:
    """The folder for files that tests and benchmarks build or install once and keep."""
    return Path(os.environ.get("RDMACOLL_CACHE") or Path.home() / ".cache" / "rdmacoll")


def described_rank(environ: Mapping[str, str] | None = None) -> int:
    """This process's rank as variables describe it; 0 without a launcher. Raises ConfigError."""
    launch = described_launch(environ)
    return launch.rank if launch else 0
