"""horovodrun's options about Horovod itself, and their meaning here. Pure.

Options of the launcher (hosts, ssh, output) are in rdmacoll/cli/run.py. The keys are those of horovodrun's
configuration file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from rdmacoll._base.external_values import shown
from rdmacoll._start.horovod_variables import WITHOUT_EFFECT
from rdmacoll.errors import ConfigError

_NEVER_S = "1e9"
_LEVELS = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "ERROR": "error",
    "FATAL": "error",
}


@dataclass(frozen=True)
class Tunable:
    """An option with the settings that it makes, or with the reason why it has no effect."""

    name: str  # as in Horovod's own code
    flags: tuple[str, ...]
    kind: type
    help: str
    key: tuple[str, str]  # section and name in the configuration file
    variables: Callable[[Any], dict[str, str]] | None = None
    no_effect: str = ""
    maximum: float | None = None

    def checked(self, value: object, source: str) -> Any:
        """A value of the configuration file, as this option has it. Raises ConfigError."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_right = is_number if self.kind in (int, float) else isinstance(value, self.kind)
        # inf and nan have remainders, too.
        if not is_right or (self.kind is int and value % 1 != 0):  # type: ignore[operator]
            raise ConfigError(f"{source}: {'.'.join(self.key)} is {shown(value)}, not {self.kind.__name__}.")
        return int(value) if self.kind is int else value  # type: ignore[call-overload]


def _fusion(megabytes: int) -> dict[str, str]:
    # 0 switches fusion off: then each tensor is a bucket.
    return {"RDMACOLL_BUCKET_BYTES": str(max(1, megabytes << 20))}


def _stall_check(is_on: bool) -> dict[str, str]:
    return {} if is_on else {"RDMACOLL_STALL_WARNING_S": _NEVER_S, "RDMACOLL_STALL_ERROR_S": _NEVER_S}


def _flags(name: str, kind: type) -> tuple[str, ...]:
    option = name.replace("_", "-")
    return (f"--{option}/--no-{option}", name) if kind is bool else (f"--{option}", name)


def _row(name: str, kind: type, key: str, text: str, variables: Callable[[Any], dict[str, str]]) -> Tunable:
    section, _, entry = key.partition(".")
    return Tunable(name, _flags(name, kind), kind, text, (section, entry), variables)


def _ignored(name: str, kind: type, key: str, variable: str, maximum: float | None = None) -> Tunable:
    """An option without effect, for the reason why its variable has none."""
    section, _, entry = key.partition(".")
    reason = WITHOUT_EFFECT[f"HOROVOD_{variable}"]
    flags = _flags(name, kind)
    return Tunable(
        name, flags, kind, f"No effect: {reason}.", (section, entry), no_effect=reason, maximum=maximum
    )


TUNABLES = (
    _row("fusion_threshold_mb", int, "params.fusion_threshold_mb", "The size of gradient buckets.", _fusion),
    _ignored("cycle_time_ms", float, "params.cycle_time_ms", "CYCLE_TIME"),
    _ignored("cache_capacity", int, "params.cache_capacity", "CACHE_CAPACITY"),
    _row(
        "hierarchical_allreduce",
        bool,
        "params.hierarchical_allreduce",
        "Reduce within each node first, or let the engine choose.",
        lambda is_on: {"RDMACOLL_ALLREDUCE_ALGORITHM": "hierarchical" if is_on else "auto"},
    ),
    _ignored("hierarchical_allgather", bool, "params.hierarchical_allgather", "HIERARCHICAL_ALLGATHER"),
    _ignored("torus_allreduce", bool, "params.torus_allreduce", "TORUS_ALLREDUCE"),
    _ignored("autotune", bool, "autotune.enabled", "AUTOTUNE"),
    _ignored("autotune_log_file", str, "autotune.log_file", "AUTOTUNE_LOG"),
    _ignored("autotune_warmup_samples", int, "autotune.warmup_samples", "AUTOTUNE_WARMUP_SAMPLES"),
    _ignored("autotune_steps_per_sample", int, "autotune.steps_per_sample", "AUTOTUNE_STEPS_PER_SAMPLE"),
    _ignored(
        "autotune_bayes_opt_max_samples",
        int,
        "autotune.bayes_opt_max_samples",
        "AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
    ),
    _ignored(
        "autotune_gaussian_process_noise",
        float,
        "autotune.gaussian_process_noise",
        "AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        maximum=1.0,
    ),
    _row(
        "timeline_filename",
        str,
        "timeline.filename",
        "Write a timeline of the operations to this file.",
        lambda path: {"HOROVOD_TIMELINE": path},
    ),
    _ignored("timeline_mark_cycles", bool, "timeline.mark_cycles", "TIMELINE_MARK_CYCLES"),
    _row(
        "stall_check",
        bool,
        "stall_check.enabled",
        "Whether tensors that some ranks never submit are a warning and an error.",
        _stall_check,
    ),
    _row(
        "stall_check_warning_time_seconds",
        int,
        "stall_check.warning_time_seconds",
        "Seconds until the warning about such a tensor.",
        lambda seconds: {"RDMACOLL_STALL_WARNING_S": str(max(0.001, seconds))},
    ),
    _row(
        "stall_check_shutdown_time_seconds",
        int,
        "stall_check.shutdown_time_seconds",
        "Seconds until such a tensor is an error; 0: never.",
        lambda seconds: {"RDMACOLL_STALL_ERROR_S": str(seconds) if seconds else _NEVER_S},
    ),
    _ignored("mpi_threads_disable", bool, "library_options.mpi_threads_disable", "MPI_THREADS_DISABLE"),
    _ignored("num_nccl_streams", int, "library_options.num_nccl_streams", "NUM_NCCL_STREAMS"),
    _ignored("thread_affinity", int, "library_options.thread_affinity", "THREAD_AFFINITY"),
    _ignored("gloo_timeout_seconds", int, "library_options.gloo_timeout_seconds", "GLOO_TIMEOUT_SECONDS"),
    Tunable(
        "log_level",
        ("--log-level", "log_level"),
        str,
        "The least level of the lines that ranks print: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL.",
        ("logging", "level"),
        lambda level: {"RDMACOLL_LOG": level_of(level)},
    ),
    Tunable(
        "log_with_timestamp",
        (
            "--log-with-timestamp/--log-without-timestamp",
            "--no-log-hide-timestamp/--log-hide-timestamp",
            "log_with_timestamp",
        ),
        bool,
        "No effect: lines of the engine have no times.",
        ("logging", "with_timestamp"),
        no_effect="lines of the engine have no times; -prefix-timestamp puts times before all lines",
    ),
)
BY_NAME = {row.name: row for row in TUNABLES}


def level_of(level: str) -> str:
    """Our name of Horovod's log level. Raises ConfigError."""
    if level.upper() not in _LEVELS:
        raise ConfigError(f"--log-level {shown(level)}: give one of {', '.join(_LEVELS)}.")
    return _LEVELS[level.upper()]


def settings_of(given: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The settings of the given tunables, and the notes about those without effect. Raises ConfigError."""
    variables: dict[str, str] = {}
    for row, value in _given(given):
        if row.kind in (int, float) and (value < 0 or (row.maximum is not None and value > row.maximum)):
            limit = "0 or more" if row.maximum is None else f"0 to {row.maximum:g}"
            raise ConfigError(f"{row.flags[0]} {value}: give {limit}.")
        if row.variables is not None:
            variables.update(row.variables(value))
    if given.get("tcp_flag"):
        variables["RDMACOLL_TRANSPORT"] = "shm,tcp"
    if given.get("nics"):
        variables["RDMACOLL_INTERFACE"] = ",".join(given["nics"])
    return variables, list(_notes(given))


def _given(given: Mapping[str, Any]) -> Iterator[tuple[Tunable, Any]]:
    for row in TUNABLES:
        if given.get(row.name) is not None:
            yield row, given[row.name]


def _notes(given: Mapping[str, Any]) -> Iterator[str]:
    """One line for each reason, with the options that it is about."""
    reasons: dict[str, list[str]] = {}
    for row, _ in _given(given):
        if row.no_effect:
            reasons.setdefault(row.no_effect, []).append(row.flags[0].partition("/")[0])
    if given.get("disable_cache"):
        reasons.setdefault("hosts are checked at each start", []).append("--disable-cache")
    for option, name in (("--mpi-args", "mpi_args"), ("--binding-args", "binding_args")):
        if given.get(name) and not given.get("use_mpi"):
            reasons.setdefault("it is for mpirun, which --mpi starts", []).append(option)
    for reason, options in reasons.items():
        verb = "has" if len(options) == 1 else "have"
        yield f"{', '.join(options)} {verb} no effect: {reason}."
