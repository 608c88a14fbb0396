"""`rdmacoll.run`: calls a function on several ranks, as `horovod.run` does."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from rdmacoll._abi.library import load
from rdmacoll._abi.settings import Values
from rdmacoll._base.external_values import refusal, whole_of
from rdmacoll._launch.elastic_job import ElasticJob
from rdmacoll._launch.failure import Ended
from rdmacoll._launch.job import Job, say
from rdmacoll._launch.request import job_options
from rdmacoll._launch.sealed_call import LAUNCHER, has_cloudpickle, packed, unpacked
from rdmacoll._start import bootstrap
from rdmacoll.errors import ConfigError, RankFailedError

# The numbers of a job -> the least value.
_LEAST = {
    "num_proc": 1,
    "min_num_proc": 1,
    "max_num_proc": 1,
    "slots": 1,
    "reset_limit": 0,
    "start_timeout": 1,
    "ssh_port": 1,
}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Starts `num_proc` ranks, calls `func(*args, **kwargs)` on each, and returns the results by rank.

        def train(epochs):
            import rdmacoll.tensorflow as hvd
            hvd.init()
            ...
            return hvd.rank()

        rdmacoll.run(train, args=(3,), num_proc=2, hosts="node1:1,node2:1")

    Ranks are new processes on this host or, over ssh, on `hosts`. Function and results travel over the pipes
    and ssh connections of the launcher, sealed with the job's secret. Functions of notebooks and scripts need
    cloudpickle. Arguments are those of `horovod.run`; `rdmacoll run --help` explains them. np, min_np, max_np
    and network_interface are old names. min_num_proc or host_discovery_script make the job elastic: then the
    results are those of the last world's ranks, and `rank` of an error is the number of a worker.

    Raises ConfigError for arguments that cannot be used, and RankFailedError for the rank that failed first.
    """
    for old, new in (("np", np), ("min_np", min_np), ("max_np", max_np)):
        if new is not None:
            text = f"{old} is deprecated: use {old.replace('np', 'num_proc')}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
    if network_interface:
        network_interfaces = network_interface.split(",")
        text = "network_interface is deprecated: use network_interfaces"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    if use_mpi:
        say("use_mpi has no effect: ranks of functions are started without MPI.")
    given = {
        "num_proc": num_proc if np is None else np,
        "min_num_proc": min_num_proc if min_np is None else min_np,
        "max_num_proc": max_num_proc if max_np is None else max_np,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "hosts": hosts,
        "hostfile": hostfile,
        "host_discovery_script": host_discovery_script,
        "start_timeout": start_timeout,
        "ssh_port": ssh_port,
        "ssh_identity_file": ssh_identity_file,
        "disable_cache": disable_cache,
        "output_filename": output_filename,
        "verbose": verbose,
        "use_gloo": use_gloo,
        "mpi_args": mpi_args,
        "nics": network_interfaces,
    }
    _check_call(func, args, kwargs, given)
    _check_pickle(func)
    command = [executable or sys.executable, "-m", "rdmacoll._launch.function_rank"]
    options = job_options(given, command, bootstrap.variables())
    # The path comes first, so that a rank finds the function's module.
    call = packed((func, tuple(args), dict(kwargs or {})), options.secret, LAUNCHER)
    function = packed((sys.path, call), options.secret, LAUNCHER)
    job = Job if options.elastic is None else ElasticJob
    result = job(dataclasses.replace(options, function=function)).run()
    if result.exit_code != 0:
        raise _failure(result.first, result.message)
    return [_result_of(number, result.results, options.secret) for number in result.numbers]


def _check_call(func: Any, args: Any, kwargs: Any, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for what would fail on every rank, and for numbers that `rdmacoll run` refuses."""
    if not callable(func):
        raise refusal(
            "func", func, "is not a function", "give a function, and its arguments by args and kwargs"
        )
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise refusal("args", args, "is not a sequence", "give a tuple, as (3,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise refusal("kwargs", kwargs, "is not a dictionary", "give a dictionary of the named arguments")
    for name, least in _LEAST.items():
        if given[name] is not None and whole_of(name, given[name]) < least:
            raise refusal(name, given[name], "is too small", f"give {least} or more")


def _check_pickle(func: Callable[..., Any]) -> None:
    rows, _ = load().readable_settings()
    if Values(rows).text("RDMACOLL_OBJECTS") == "json":
        raise ConfigError(
            "run() sends a function by pickle, and RDMACOLL_OBJECTS=json refuses pickle: unset it."
        )
    if getattr(func, "__module__", "") == "__main__" and not has_cloudpickle():
        raise ConfigError(
            "this function is of a script or a notebook, which ranks cannot import: pip install "
            "cloudpickle, or put the function in a module."
        )


def _failure(first: Ended | None, message: str) -> RankFailedError:
    text = message.removeprefix("rdmacoll run: ")
    if first is None:
        return RankFailedError(text)
    return RankFailedError(text, rank=first.rank, host=first.host, cause=first.reason())


def _result_of(rank: int, results: Mapping[int, bytes], secret: str) -> Any:
    if rank not in results:
        raise ConfigError(f"rank {rank} ended without a result: the function must return, and not exit.")
    return unpacked(results[rank], secret, rank)
