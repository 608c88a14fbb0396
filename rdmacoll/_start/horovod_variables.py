"""Horovod's variables: those that are settings here, and those without effect. Pure: the variables come as a
mapping.

The aliases of cpp/settings/settings_table.cc are honoured. A test compares both with the list of all
variables of Horovod 0.28.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rdmacoll._abi.settings import Values

PREFIX = "HOROVOD_"
# Launchers identify a rank by these, or choose the library that carries its data.
OF_LAUNCHERS = tuple(
    PREFIX + name
    for name in (
        *("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"),
        *("GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT"),
    )
)
_CHOSEN_BY_LAUNCHERS = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_ELASTIC")
_LAUNCHED = "HOROVOD_RANK"
# The other variables, without their prefix, by the reason why they have no effect.
_REASONS = {
    "operations start as soon as all ranks are ready": "CYCLE_TIME",
    "the engine has no cycles": "TIMELINE_MARK_CYCLES",
    "rdmacoll tries ways by itself, see RDMACOLL_TUNE": "AUTOTUNE AUTOTUNE_LOG "
    "AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES "
    "AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
    "all operations that repeat are remembered": "CACHE_CAPACITY",
    "process sets can always be added and removed": "DYNAMIC_PROCESS_SETS",
    "each operation gets the fastest algorithm for its size": "HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE "
    "ADASUM_MPI_CHUNK_SIZE",
    "a group is always one operation": "DISABLE_GROUP_FUSION",
    "rdmacoll carries the data itself": "CONTROLLER CPU_OPERATIONS CCL_CACHE",
    "MPI carries the start alone, from one thread": "MPI_THREADS_DISABLE",
    "a late rank is no failure, and RDMACOLL_PEER_TIMEOUT_S finds a dead one": "GLOO_TIMEOUT_SECONDS",
    "lines of the log have no time": "LOG_HIDE_TIME",
    "the caller that waits drives the engine": "THREAD_AFFINITY",
    "processors reduce the tensors": "NUM_NCCL_STREAMS BATCH_D2D_MEMCOPIES DISABLE_NVTX_RANGES "
    "ENABLE_ASYNC_COMPLETION",
    "collectives are no operations of XLA": "ENABLE_XLA_OPS",
    "rdmacoll run makes a job elastic by --min-np": "ELASTIC",
    "rdmacoll run has the option --elastic-timeout": "ELASTIC_TIMEOUT",
    "rdmacoll does not run on Spark": "SPARK_PYTHONPATH SPARK_START_TIMEOUT "
    "SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_WORK_DIR",
    "it is for a build of Horovod": "ALLOW_MIXED_GPU_IMPL BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST CMAKE "
    "CUDA_HOME DEBUG GPU GPU_ALLGATHER GPU_ALLREDUCE GPU_ALLTOALL GPU_BROADCAST GPU_OPERATIONS "
    "GPU_REDUCESCATTER LOCAL_VERSION NCCL_HOME NCCL_INCLUDE NCCL_LIB NCCL_LINK NVTX_INCLUDE ROCM_HOME "
    "SKIP_COMPILE WITHOUT_GLOO WITHOUT_MPI WITHOUT_MXNET WITHOUT_NVTX WITHOUT_PYTORCH WITHOUT_TENSORFLOW "
    "WITH_GLOO WITH_MPI WITH_MXNET WITH_NVTX WITH_PYTORCH WITH_TENSORFLOW",
}
WITHOUT_EFFECT = {PREFIX + name: reason for reason, names in _REASONS.items() for name in names.split()}
_UNKNOWN = "no variable of Horovod 0.28.1"


def lines(variables: Mapping[str, str], values: Values) -> Iterator[str]:
    """The lines for the log: the variables that are honoured, and those without effect."""
    honoured = ", ".join(_honoured(values))
    if honoured:
        yield f"Horovod's variables: {honoured}."
    ignored = without_effect(variables, values.aliases())
    if ignored:
        parts = (f"{', '.join(names)} ({reason})" for reason, names in ignored.items())
        yield f"Horovod's variables without effect: {'; '.join(parts)}."


def _honoured(values: Values) -> Iterator[str]:
    """One phrase for each variable that gives a setting its value."""
    settings: dict[str, list[str]] = {}
    for name in values.names():
        given = values.given(name)
        if given.startswith(PREFIX):
            settings.setdefault(given, []).append(f"{name}={values.text(name)}")
    for given, set_by_it in settings.items():
        yield f"{given} sets {' and '.join(set_by_it)}"


def without_effect(variables: Mapping[str, str], aliases: Collection[str]) -> dict[str, list[str]]:
    """The variables of Horovod that are set, and that no setting reads, by the reason."""
    of_launchers = (*OF_LAUNCHERS, *(_CHOSEN_BY_LAUNCHERS if _LAUNCHED in variables else ()))
    found: dict[str, list[str]] = {}
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in aliases and name not in of_launchers:
            found.setdefault(WITHOUT_EFFECT.get(name, _UNKNOWN), []).append(name)
    return found
