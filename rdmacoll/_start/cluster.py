"""The ranks of a run with parameter servers that is started by hand, one command a process.

Lists of addresses name the ranks, as TensorFlow's ClusterSpec does. Pure: flags and variables come as
arguments. Workers are the first ranks, in the order of their list, and servers the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdmacoll._abi.settings import Values
from rdmacoll._base.external_values import json_of, shown, text_of, whole_of
from rdmacoll._start.launch import Launch, parse_address
from rdmacoll.errors import ConfigError

_LISTS = ("job_name", "task_index", "ps_hosts", "worker_hosts")
# Flags of tf_cnn_benchmarks that describe the ranks and their updates. Only "num_servers" is our own.
_FLAGS = (*_LISTS, "server_protocol", "variable_update", "cross_replica_sync", "num_servers")
# Both send gradients to servers. In the second one each worker keeps its own variables, too.
_UPDATES = ("parameter_server", "distributed_replicated")
_TRUE, _FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")
_CHIEFS = ("chief", "master")
_UNSUPPORTED_JOBS = {
    "evaluator": "there are no evaluators here: evaluate in a process of its own, without TF_CONFIG, from "
    "the checkpoints that worker 0 writes",
    "controller": "there is no controller here: start only the workers and the servers",
}
_PROTOCOLS = {
    "grpc": (False, "data goes over the transports that RDMACOLL_TRANSPORT allows"),
    "grpc+mpi": (
        False,
        "MPI carries no data here; data goes over the transports that RDMACOLL_TRANSPORT allows",
    ),
    "grpc+verbs": (True, "RDMA is requested, as by RDMACOLL_RDMA=true"),
    "grpc+gdr": (True, "RDMA is requested, as by RDMACOLL_RDMA=true; GPU memory goes through the host's"),
}


@dataclass(frozen=True)
class ClusterOptions:
    """The start as arguments, flags or TF_CONFIG describe it. Fields that they do not set are empty."""

    source: str
    job_name: str = ""
    task_index: int | None = None
    ps_hosts: tuple[str, ...] = ()
    worker_hosts: tuple[str, ...] = ()
    protocol: str = ""
    num_servers: str = ""
    variable_update: str = ""
    is_synchronous: bool | None = None

    def has_lists(self) -> bool:
        """Whether any field describes the ranks."""
        hosts = self.ps_hosts + self.worker_hosts
        return bool(self.job_name) or bool(hosts) or self.task_index is not None


def flags_of(arguments: Sequence[str]) -> dict[str, str]:
    """The flags of a command line that rdmacoll reads, by name. The last one of a name counts.

    Other flags are ignored. A hyphen is the same as an underscore, as with argparse. Raises ConfigError.

    >>> flags_of(["train.py", "--job_name=ps", "--lr", "0.1", "-task_index", "1", "--", "--ps_hosts=x"])
    {'job_name': 'ps', 'task_index': '1'}
    """
    is_list = isinstance(arguments, Sequence) and not isinstance(arguments, (str, bytes))
    if not is_list or not all(isinstance(word, str) for word in arguments):
        raise ConfigError(f"argv={shown(arguments)} is no list of words: give argv=True, or a list of words.")
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            continue
        name = (flag[2:] if flag.startswith("--") else flag[1:]).replace("-", "_")
        if name in _FLAGS and not equals:
            if name == "cross_replica_sync":  # a switch, whose value is optional
                is_word = bool(rest) and rest[0].lower() in (*_TRUE, *_FALSE)
                value = rest.pop(0) if is_word else "true"
            elif not rest or rest[0].startswith("--"):
                raise ConfigError(f"{flag} has no value: give {flag}=VALUE.")
            else:
                value = rest.pop(0)
        if name in _FLAGS:
            found[name] = text_of(name, value.strip(), f"give {flag}=VALUE")
        elif name in ("nocross_replica_sync", "no_cross_replica_sync"):
            found["cross_replica_sync"] = "false"
    return found


def hosts_of(value: str | Sequence[str] | None, name: str) -> tuple[str, ...]:
    """The addresses of a list, which may be one text with commas. Raises ConfigError.

    >>> hosts_of("node1:2222, node2:2222", "ps_hosts"), hosts_of(None, "ps_hosts")
    (('node1:2222', 'node2:2222'), ())
    """
    if value is None or (isinstance(value, str) and not value):
        return ()
    if not isinstance(value, (str, Sequence)):
        raise ConfigError(
            f"{name}={shown(value)} is a {type(value).__name__}: give a list of host:port, or one text with "
            "commas."
        )
    items = value.split(",") if isinstance(value, str) else value
    hosts = tuple(text_of(name, item, "give a list of host:port").strip() for item in items)
    for host in hosts:
        if parse_address(host) is None:
            raise ConfigError(
                f"{name} names {shown(host)}, which is not host:port (a port from 1 to 65535; an IPv6 "
                "address in brackets)."
            )
    return hosts


def _index_of(value: object) -> int | None:
    if value is None or (isinstance(value, str) and not value):
        return None
    return whole_of("task_index", value, "tasks are counted from 0")


def cluster_options(
    flags: Mapping[str, str],
    *,
    job_name: str | None = None,
    task_index: int | str | None = None,
    ps_hosts: str | Sequence[str] | None = None,
    worker_hosts: str | Sequence[str] | None = None,
    protocol: str | None = None,
) -> ClusterOptions:
    """The start as arguments describe it, and flags for the arguments that are None. Raises ConfigError."""
    arguments = {
        "job_name": job_name,
        "task_index": task_index,
        "ps_hosts": ps_hosts,
        "worker_hosts": worker_hosts,
        "server_protocol": protocol,
    }
    is_argument = any(arguments[name] is not None for name in _LISTS)
    merged: dict[str, Any] = {
        **flags,
        **{name: value for name, value in arguments.items() if value is not None},
    }
    return ClusterOptions(
        "arguments of init()" if is_argument else "the command line",
        text_of("job_name", merged.get("job_name", ""), "give ps or worker"),
        _index_of(merged.get("task_index")),
        hosts_of(merged.get("ps_hosts"), "ps_hosts"),
        hosts_of(merged.get("worker_hosts"), "worker_hosts"),
        _checked_protocol(text_of("server_protocol", merged.get("server_protocol", ""))),
        str(merged.get("num_servers", "")),
        str(merged.get("variable_update", "")),
        _flag_of(merged.get("cross_replica_sync", "")),
    )


def _flag_of(value: str) -> bool | None:
    word = value.lower()
    if word not in ("", *_TRUE, *_FALSE):
        raise ConfigError(f"cross_replica_sync={shown(value)} is neither true nor false.")
    return word in _TRUE if word else None


def tf_config_options(text: str) -> ClusterOptions | None:
    """The start as TF_CONFIG describes it. None if it names no cluster. Raises ConfigError."""
    document = json_of("TF_CONFIG", text, "correct it, or unset it")
    cluster = document.get("cluster") if isinstance(document, dict) else None
    if not cluster:
        return None
    task = document.get("task") or {}
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise ConfigError(
            'TF_CONFIG is not like {"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "ps", '
            '"index": 0}}: correct it, or unset it.'
        )
    unknown = sorted(set(cluster) - {"ps", "worker", "evaluator", *_CHIEFS})
    if unknown:
        raise ConfigError(f"TF_CONFIG names the job {shown(unknown[0])}: the jobs are chief, worker and ps.")
    chiefs = [host for job in _CHIEFS for host in hosts_of(cluster.get(job), f"TF_CONFIG's {job}")]
    if len(chiefs) > 1:
        raise ConfigError(
            f"TF_CONFIG names {len(chiefs)} chiefs ({', '.join(chiefs)}): there is one at most."
        )
    kind = text_of("TF_CONFIG's task type", task.get("type", ""), "give chief, worker or ps")
    index = _index_of(task.get("index"))
    if kind in _CHIEFS and chiefs:
        if index:
            raise ConfigError(f"TF_CONFIG's task is {kind} {index}: there is one chief, with the index 0.")
        kind, index = "worker", 0
    elif kind == "worker" and index is not None and index >= 0:
        index += len(chiefs)
    workers = hosts_of(cluster.get("worker"), "TF_CONFIG's worker")
    return ClusterOptions(
        "TF_CONFIG", kind, index, hosts_of(cluster.get("ps"), "TF_CONFIG's ps"), (*chiefs, *workers)
    )


def _checked_protocol(protocol: str) -> str:
    if protocol and protocol not in _PROTOCOLS:
        raise ConfigError(
            f"server_protocol={shown(protocol)} is unknown: give {', '.join(_PROTOCOLS)}, or none."
        )
    return protocol


def launch_of(options: ClusterOptions, *, is_colocated: bool) -> Launch:
    """The start that lists describe. Raises ConfigError."""
    if options.job_name in _UNSUPPORTED_JOBS:
        raise ConfigError(f"job_name={options.job_name}: {_UNSUPPORTED_JOBS[options.job_name]}.")
    if options.job_name not in ("", "ps", "worker"):
        raise ConfigError(
            f"job_name={shown(options.job_name)} is unknown ({options.source}): give ps or worker."
        )
    if options.variable_update and options.variable_update not in _UPDATES:
        raise ConfigError(
            f"variable_update={options.variable_update} has no parameter servers: start workers with mpirun, "
            f"without lists of hosts, or give {' or '.join(_UPDATES)}."
        )
    required = {
        "job_name": options.job_name,
        "worker_hosts": options.worker_hosts,
        "ps_hosts": options.ps_hosts,
    }
    if is_colocated:
        if options.ps_hosts or options.job_name == "ps":
            raise ConfigError(
                f"{'ps_hosts' if options.ps_hosts else 'job_name=ps'} names parameter servers, and "
                "RDMACOLL_SERVER_PLACEMENT=colocated says that every worker serves instead: leave one of "
                "them out."
            )
        del required["ps_hosts"]
    missing = [name for name, value in required.items() if not value]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing ({options.source}): a "
            "start by hand has job_name (ps or worker), task_index, ps_hosts and worker_hosts in every "
            "process."
        )
    hosts = options.worker_hosts + options.ps_hosts
    tasks = options.ps_hosts if options.job_name == "ps" else options.worker_hosts
    rank = _index_in(options, len(tasks)) + (len(options.worker_hosts) if options.job_name == "ps" else 0)
    launch = Launch(options.source, rank, len(hosts), hosts[0], hosts=hosts, servers=len(options.ps_hosts))
    _check_duplicates(launch)
    return launch


def _index_in(options: ClusterOptions, tasks: int) -> int:
    among = f"{options.job_name}_hosts names {tasks}, so tasks are 0 to {tasks - 1}"
    if options.task_index is None and tasks > 1:
        raise ConfigError(f"task_index is missing ({options.source}): {among}, one for each process.")
    index = options.task_index or 0
    if not 0 <= index < tasks:
        raise ConfigError(f"task_index={index} ({options.source}) is out of range: {among}.")
    return index


def _check_duplicates(launch: Launch) -> None:
    seen: dict[str, int] = {}
    for rank, host in enumerate(launch.hosts):
        first = seen.setdefault(host.lower(), rank)
        if first != rank:
            raise ConfigError(
                f"{launch.name(first)} and {launch.name(rank)} have the same address {host}: give every "
                "process a port of its own."
            )


def settings_of(options: ClusterOptions, launch: Launch | None, values: Values) -> dict[str, object]:
    """The settings that follow from lists and protocol. They must not contradict `values`.

    Raises ConfigError.
    """
    return {
        **_servers_of(options, launch, values),
        **_updates_of(options, launch, values),
        **_network_of(options, values),
    }


def _servers_of(options: ClusterOptions, launch: Launch | None, values: Values) -> dict[str, object]:
    if launch is None:
        return {"mode": "ps", "num_servers": options.num_servers} if options.num_servers else {}
    if values.is_set("RDMACOLL_MODE") and values.text("RDMACOLL_MODE") != "ps":
        raise ConfigError(
            f"lists of hosts ({options.source}) start parameter servers, and RDMACOLL_MODE="
            f"{values.text('RDMACOLL_MODE')} says that there are none: leave one of them out."
        )
    if not launch.servers:
        return {"mode": "ps"}
    number = "RDMACOLL_NUM_SERVERS"
    for text in (options.num_servers, values.text(number) if values.is_set(number) else ""):
        if text and text != str(launch.servers):
            raise ConfigError(
                f"the lists ({options.source}) have {launch.servers} parameter servers, and "
                f"{number} says {text}: leave it out."
            )
    return {"mode": "ps", "num_servers": launch.servers}


def _updates_of(options: ClusterOptions, launch: Launch | None, values: Values) -> dict[str, object]:
    is_synchronous = options.is_synchronous
    if is_synchronous is None or (launch is None and is_synchronous):
        return {}
    text = "true" if is_synchronous else "false"
    if values.is_set("RDMACOLL_PS_SYNC") and values.text("RDMACOLL_PS_SYNC") != text:
        raise ConfigError(
            f"cross_replica_sync={text}, and RDMACOLL_PS_SYNC says otherwise: leave one of them out."
        )
    return {"ps_sync": is_synchronous}


def _network_of(options: ClusterOptions, values: Values) -> dict[str, object]:
    if not options.protocol or not _PROTOCOLS[options.protocol][0]:
        return {}
    if values.is_set("RDMACOLL_RDMA") and values.text("RDMACOLL_RDMA") == "false":
        raise ConfigError(
            f"server_protocol={options.protocol} requests RDMA, but RDMACOLL_RDMA (TF_RDMA_ENABLED) is "
            "false: change one of them."
        )
    return {"rdma": True}


def protocol_sentence(options: ClusterOptions, values: Values) -> str:
    """The meaning of the given protocol of TensorFlow's servers here, as a sentence, or ""."""
    if not options.protocol:
        return ""
    requests_rdma, meaning = _PROTOCOLS[options.protocol]
    allowed = values.text("RDMACOLL_TRANSPORT")
    if requests_rdma and allowed not in ("", "auto") and "rdma" not in allowed.split(","):
        meaning = f"RDMACOLL_TRANSPORT={allowed} excludes RDMA, and takes precedence"
    return f"server_protocol={options.protocol}: {meaning}."
