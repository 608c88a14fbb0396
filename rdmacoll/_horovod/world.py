"""The world as Horovod's functions describe it."""

from __future__ import annotations

import importlib.util
import operator
import sys
from collections import Counter
from typing import Any

from rdmacoll._base.external_values import shown
from rdmacoll._horovod import process_sets as horovod_sets
from rdmacoll._world import places, world
from rdmacoll.engine.process_sets import process_sets as sets_of_world
from rdmacoll.errors import ConfigError
from rdmacoll.ops._run_time import at_run_time
from rdmacoll.process_set import global_process_set

_SETS: list[Any] = []  # those of the last `init`


def init(comm: Any = None, process_sets: Any = None, **settings: Any) -> None:
    """Joins the world that the launcher describes. Every rank has to call it.

    comm: an mpi4py communicator whose ranks form the world, or a list of ranks of the launcher's world.
    process_sets: sets that exist from the start, the same on all ranks; "dynamic" adds none. None restores
    those of the last `init` if the world was left and is the same one.
    settings: other arguments of `rdmacoll.init`.

    A second call binds its process sets to those of the first one, and changes nothing else. Raises
    ValueError for wrong arguments. After a ValueError about process sets the world stands, and another call
    can give right ones.
    """
    sets = horovod_sets.requested(process_sets)
    if not world.is_initialized() or settings:
        communicator = _communicator(comm)
        _SETS[:] = sets
        world.init(communicator, process_sets=None if process_sets is None else [], **settings)
        global_process_set.mpi_comm = communicator
        _learn_ranks(sets)
        if sets:
            horovod_sets.create(sets)
    _learn_ranks(sets)
    horovod_sets.bind(sets)


def init_again() -> None:
    """Joins the next world of an elastic job with the arguments of the last `init`, as new workers do."""
    world.init(**places.arguments())
    if _SETS:
        horovod_sets.create(_SETS)
        horovod_sets.bind(_SETS)


def _learn_ranks(sets: list[Any]) -> None:
    for one in sets:
        if one.ranks is None:
            if global_process_set.mpi_comm is None:
                raise ConfigError(
                    f"{one} was made from a communicator: give init() the communicator of all ranks, too."
                )
            one.learn_ranks(global_process_set.mpi_comm)


def _communicator(comm: Any) -> Any:
    """The communicator for `world.init`. Raises ConfigError."""
    if comm is None or hasattr(comm, "Get_group"):
        return comm
    try:
        ranks = [operator.index(rank) for rank in comm]
    except TypeError:
        raise ConfigError(f"comm={shown(comm)}: give ranks, an mpi4py communicator, or None.") from None
    if not ranks:
        return None
    places.take()
    start = world.start_of()
    launch = start.launch
    if ranks == list(range(launch.size)):
        return None
    if start.comm is None:
        raise ConfigError(
            f"comm={ranks} is not the whole world of {launch.size} ranks ({launch.source}). Only MPI can "
            "form a smaller one: start with mpirun, or start only these ranks."
        )
    if launch.rank not in ranks or not set(ranks) <= set(range(launch.size)):
        raise ConfigError(
            f"comm={ranks} on rank {launch.rank} of {launch.size}: name existing ranks, and call init() only "
            "on these."
        )
    return start.comm.Create_group(start.comm.Get_group().Incl(ranks))


def is_homogeneous() -> bool:
    """Whether all nodes have the same number of ranks."""
    return len(set(Counter(world.describe()["nodes"]).values())) == 1


def mpi_built() -> bool:
    """Whether mpi4py is installed, by which a world can start over MPI."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Whether MPI has started this world."""
    return world.is_initialized() and world.current().is_started_by_mpi


def mpi_threads_supported() -> bool:
    """Whether the program may use mpi4py beside this world. Raises ValueError before `init`."""
    world.current()
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized():
        return mpi_built()
    return bool(module.Query_thread() == module.THREAD_MULTIPLE)


def gloo_built() -> bool:
    """True: a world can start without MPI, as Horovod's do with Gloo."""
    return True


def gloo_enabled() -> bool:
    """Whether this world has started without MPI."""
    return world.is_initialized() and not mpi_enabled()


def nccl_built() -> int:
    """0: NCCL is not used."""
    return 0


def ddl_built() -> bool:
    """False: IBM's DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: Intel's oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """False: collectives run on the processor."""
    return False


def rocm_built() -> bool:
    """False: collectives run on the processor."""
    return False


def rank_op(name: str | None = None) -> Any:
    """`rank()` as an int32 tensor, which a graph evaluates whenever it runs."""
    return at_run_time(world.rank, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The size of a process set, as `rank_op`."""
    return at_run_time(lambda: _set_of(process_set_id).size(), name)


def local_rank_op(name: str | None = None) -> Any:
    """`local_rank()`, as `rank_op`."""
    return at_run_time(world.local_rank, name)


def local_size_op(name: str | None = None) -> Any:
    """`local_size()`, as `rank_op`."""
    return at_run_time(world.local_size, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the process set, otherwise 0, as `rank_op`."""
    return at_run_time(lambda: int(_set_of(process_set_id).included()), name)


def _set_of(number: int) -> Any:
    found = sets_of_world().get(number)
    if found is None:
        raise ConfigError(f"process_set_id={number}: this world has no such set.")
    return found
