"""The task and rank of a process, from lists of hosts in arguments, in flags and in TF_CONFIG."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rdmacoll._abi.settings import Values
from rdmacoll._start import cluster
from rdmacoll._start.bootstrap import find_lists, find_start
from rdmacoll._start.cluster import cluster_options, flags_of, launch_of, protocol_sentence, settings_of
from rdmacoll._start.launch import Launch
from rdmacoll.errors import ConfigError

PS, WORKERS = "a:2222,b:2222", "c:2222,d:2222,[fd00::1]:2222"
LISTS = {"ps_hosts": PS, "worker_hosts": WORKERS}


def values(**given: str) -> Values:
    """Returns settings as the library does when the user has set `given`."""
    plain = {"MODE": "allreduce", "NUM_SERVERS": "1", "SERVER_PLACEMENT": "dedicated", "RDMA": "true"}
    plain["PS_SYNC"] = "true"
    rows = []
    for name, value in {**plain, "TRANSPORT": "auto", **given}.items():
        source = "environment" if name in given else "default"
        rows.append({"name": f"RDMACOLL_{name}", "value": value, "source": source})
    return Values(rows)


def options_of(words: str, **arguments: Any) -> cluster.ClusterOptions:
    return cluster_options(flags_of(["train.py", *words.split()]), **arguments)


def start(words: str = "", *, is_colocated: bool = False, **arguments: Any) -> Launch:
    return launch_of(options_of(words, **arguments), is_colocated=is_colocated)


@pytest.mark.parametrize(
    ("job", "task", "rank"), [("worker", 0, 0), ("worker", 2, 2), ("ps", 0, 3), ("ps", 1, 4)]
)
def test_workers_are_the_first_ranks_and_servers_the_last(job, task, rank):
    found = start(job_name=job, task_index=task, **LISTS)
    assert (found.rank, found.size, found.servers, found.rendezvous) == (rank, 5, 2, "c:2222")
    assert found.hosts == (*WORKERS.split(","), *PS.split(","))
    assert found.name(rank) == f"{job} {task}"
    assert found.name_with_address(4) == "ps 1 (b:2222)"
    assert f"{job} {task} at {found.hosts[rank]}, rank {rank} of 5" in found.describe()


def test_flags_arguments_and_lists_say_the_same():
    by_flags = start(f"--job_name=ps --task_index 1 --ps_hosts={PS} -worker_hosts={WORKERS}")
    lists = {"ps_hosts": PS.split(","), "worker_hosts": tuple(WORKERS.split(","))}
    by_arguments = start(job_name="ps", task_index="1", **lists)
    assert by_flags.source == "the command line"
    assert by_arguments.source == "arguments of init()"
    assert by_flags.hosts == by_arguments.hosts
    assert by_flags.rank == by_arguments.rank == 4


def test_arguments_come_before_flags():
    words = f"--job_name=ps --task_index=1 --ps_hosts={PS} --worker_hosts={WORKERS}"
    assert start(words, task_index=0).rank == 3
    assert start(words, job_name="worker").rank == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--job_name=ps --job_name=worker", {"job_name": "worker"}),
        ("--model=resnet50 --batch_size 64 --task_index 1 data", {"task_index": "1"}),
        ("--nocross_replica_sync", {"cross_replica_sync": "false"}),
        ("--cross_replica_sync false --task_index=0", {"cross_replica_sync": "false", "task_index": "0"}),
        ("--cross_replica_sync --task_index=0", {"cross_replica_sync": "true", "task_index": "0"}),
        ("--task_index=1 -- --task_index=2", {"task_index": "1"}),
        ("--job-name ps --task-index=1", {"job_name": "ps", "task_index": "1"}),
        ("--no-cross-replica-sync", {"cross_replica_sync": "false"}),
        ("job_name=ps --my_job_name=ps --job_names=ps", {}),
        ("--ps_hosts= --server_protocol=grpc", {"ps_hosts": "", "server_protocol": "grpc"}),
    ],
)
def test_flags_are_found_among_others(words, found):
    given = ["train.py", *words.split()]
    before = list(given)
    assert flags_of(given) == found
    assert given == before


def test_a_command_line_is_a_list_of_words():
    with pytest.raises(ConfigError, match="argv='--job_name=ps' is no list of words: give argv=True"):
        flags_of("--job_name=ps")


def test_no_flags_are_no_lists():
    assert not options_of("--model=resnet50 --ps_hosts= --job_name=").has_lists()
    assert find_lists(options_of(""), values(), environ={}) is None
    assert find_start(listed=find_lists(options_of(""), values(), environ={}), environ={}).launch.size == 1


@pytest.mark.parametrize(
    ("arguments", "message_part"),
    [
        (
            {"job_name": "worker", "task_index": 3},
            "task_index=3 (arguments of init()) is out of range: worker_",
        ),
        ({"job_name": "ps", "task_index": -1}, "ps_hosts names 2, so tasks are 0 to 1"),
        ({"job_name": "ps"}, "task_index is missing (arguments of init()): ps_hosts names 2"),
        ({"job_name": "ps", "task_index": "one"}, "task_index='one' is not a whole number"),
        ({"job_name": "ps", "task_index": "1.0"}, "task_index='1.0' is not a whole number"),
        ({"job_name": "ps", "task_index": "\u00b2"}, "task_index='\u00b2' is not a whole number"),
        ({"task_index": 0}, "job_name is missing"),
        ({"job_name": "master", "task_index": 0}, "job_name='master' is unknown"),
        (
            {"job_name": "evaluator", "task_index": 0},
            "there are no evaluators here: evaluate in a process of",
        ),
        ({"job_name": "controller", "task_index": 0}, "there is no controller here"),
        (
            {"job_name": "ps", "task_index": 0, "ps_hosts": "a:2222,A:2222"},
            "ps 0 and ps 1 have the same address",
        ),
        (
            {"job_name": "ps", "task_index": 0, "ps_hosts": "c:2222"},
            "worker 0 and ps 0 have the same address",
        ),
        ({"job_name": "ps", "task_index": 0, "ps_hosts": "a"}, "ps_hosts names 'a', which is not host:port"),
        ({"job_name": "ps", "task_index": 0, "ps_hosts": "a:0"}, "'a:0', which is not host:port"),
        ({"job_name": "ps", "task_index": 0, "ps_hosts": "a:1,"}, "ps_hosts names '', which is"),
        ({"job_name": "ps", "task_index": 0, "ps_hosts": 7}, "is a int: give a list of host:port"),
        ({"job_name": "ps", "task_index": 0, "ps_hosts": {0: "a:1"}}, "is a dict: give a list"),
        ({"job_name": "worker", "task_index": 0, "ps_hosts": ""}, "ps_hosts is missing"),
        ({"job_name": "worker", "ps_hosts": "", "worker_hosts": []}, "worker_hosts and ps_hosts are missing"),
        (
            {"job_name": "ps", "task_index": 0, "protocol": "verbs"},
            "server_protocol='verbs' is unknown: give grpc, ",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(arguments, message_part):
    with pytest.raises(ConfigError) as caught:
        start(**{**LISTS, **arguments})
    assert message_part in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message_part"),
    [
        ("--job_name", "--job_name has no value"),
        ("--ps_hosts --worker_hosts=a:1", "--ps_hosts has no value"),
        ("--cross_replica_sync=maybe", "cross_replica_sync='maybe' is neither true nor false"),
        ("--variable_update=horovod --job_name=ps", "variable_update=horovod has no parameter servers"),
    ],
)
def test_flags_that_cannot_be_are_refused(words, message_part):
    with pytest.raises(ConfigError) as caught:
        start(words)
    assert message_part in str(caught.value)


def test_one_task_needs_no_index():
    assert (
        start("--variable_update=parameter_server", job_name="ps", ps_hosts="a:1", worker_hosts="b:1").rank
        == 1
    )


def test_colocated_workers_need_no_servers():
    found = start(job_name="worker", task_index=1, worker_hosts=WORKERS, is_colocated=True)
    assert (found.rank, found.size, found.servers) == (1, 3, 0)
    assert settings_of(options_of(""), found, values()) == {"mode": "ps"}
    message_part = "RDMACOLL_SERVER_PLACEMENT=colocated says that every worker serves"
    with pytest.raises(ConfigError, match=f"ps_hosts names parameter servers, and {message_part}"):
        start(job_name="worker", task_index=1, is_colocated=True, **LISTS)
    with pytest.raises(ConfigError, match=f"job_name=ps names parameter servers, and {message_part}"):
        start(job_name="ps", task_index=0, worker_hosts=WORKERS, is_colocated=True)


def test_mode_and_servers_follow_from_the_lists():
    options = options_of("", job_name="ps", task_index=0, **LISTS)
    found = launch_of(options, is_colocated=False)
    follows = {"mode": "ps", "num_servers": 2}
    assert settings_of(options, found, values()) == follows
    assert settings_of(options, found, values(MODE="ps", NUM_SERVERS="2")) == follows
    with pytest.raises(ConfigError, match="RDMACOLL_MODE=allreduce says that there are none"):
        settings_of(options, found, values(MODE="allreduce"))
    with pytest.raises(ConfigError, match="have 2 parameter servers, and RDMACOLL_NUM_SERVERS says 1"):
        settings_of(options, found, values(NUM_SERVERS="1"))
    wrong = options_of("--num_servers=3", job_name="ps", task_index=0, **LISTS)
    with pytest.raises(ConfigError, match="RDMACOLL_NUM_SERVERS says 3"):
        settings_of(wrong, found, values())


def test_replicas_that_do_not_wait_are_asynchronous_servers():
    words = "--job_name=ps --task_index=0 --ps_hosts=a:1 --worker_hosts=b:1"
    for flag, sync in (("", None), ("--cross_replica_sync", True), ("--nocross_replica_sync", False)):
        options = options_of(f"{words} {flag}")
        follows = settings_of(options, launch_of(options, is_colocated=False), values())
        assert follows.get("ps_sync") is sync
    with pytest.raises(ConfigError, match="cross_replica_sync=false, and RDMACOLL_PS_SYNC says otherwise"):
        settings_of(options, None, values(PS_SYNC="true"))
    assert settings_of(options_of("--cross_replica_sync=true"), None, values()) == {}  # in any mode


def test_servers_may_be_counted_by_a_flag_where_a_launcher_starts_them():
    assert settings_of(options_of("--num_servers=2"), None, values()) == {"mode": "ps", "num_servers": "2"}
    assert settings_of(options_of("--model=resnet50"), None, values()) == {}


@pytest.mark.parametrize(
    ("protocol", "follows", "words"),
    [
        ("grpc", {}, "that RDMACOLL_TRANSPORT allows"),
        ("grpc+mpi", {}, "MPI carries no data here"),
        ("grpc+verbs", {"rdma": True}, "RDMA is requested, as by RDMACOLL_RDMA=true"),
        ("grpc+gdr", {"rdma": True}, "GPU memory goes through the host's"),
    ],
)
def test_protocols_are_mapped_in_one_sentence(protocol, follows, words):
    options = options_of(f"--server_protocol={protocol}")
    assert settings_of(options, None, values()) == follows
    assert protocol_sentence(options, values()).startswith(f"server_protocol={protocol}: ")
    assert words in protocol_sentence(options, values())
    obeyed = protocol_sentence(options, values(TRANSPORT="shm,tcp"))
    assert ("RDMACOLL_TRANSPORT=shm,tcp excludes RDMA, and takes precedence" in obeyed) == bool(follows)
    if follows:
        with pytest.raises(ConfigError, match="requests RDMA, but RDMACOLL_RDMA"):
            settings_of(options, None, values(RDMA="false"))


def tf_config(kind: str, index: object, **jobs: list[str]) -> dict[str, str]:
    named = {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"], **jobs}
    return {"TF_CONFIG": json.dumps({"cluster": named, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("kind", "index", "jobs", "rank", "size"),
    [
        ("worker", 1, {}, 1, 4),
        ("ps", "1", {}, 3, 4),
        ("chief", 0, {"chief": ["e:1"]}, 0, 5),
        ("worker", 0, {"chief": ["e:1"]}, 1, 5),
        ("ps", 0, {"master": ["e:1"], "evaluator": ["f:1"]}, 3, 5),
    ],
)
def test_tf_config_says_it_with_parameter_servers(kind, index, jobs, rank, size):
    environ = tf_config(kind, index, **jobs)
    found = find_lists(options_of(""), values(MODE="ps"), environ=environ)
    assert found is not None
    assert (found.source, found.rank, found.size, found.servers) == ("TF_CONFIG", rank, size, 2)
    assert find_lists(options_of(""), values(), environ=environ) is None  # in allreduce mode it says nothing


def test_tf_config_comes_last():
    environ = tf_config("worker", 1)
    for other in (
        {"RDMACOLL_RANK": "0", "RDMACOLL_SIZE": "1"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
    ):
        assert find_lists(options_of(""), values(MODE="ps"), environ={**environ, **other}) is None
    one = {"PMI_SIZE": "1", "PMI_RANK": "0"}
    assert find_lists(options_of(""), values(MODE="ps"), environ={**environ, **one}) is not None
    options = options_of("", job_name="ps", task_index=0, **LISTS)
    by_arguments = find_lists(options, values(MODE="ps"), environ=environ)
    assert by_arguments is not None
    assert by_arguments.source == "arguments of init()"


@pytest.mark.parametrize(
    ("environ", "message_part"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG='{' is not JSON"),
        ({"TF_CONFIG": '{"cluster": [1]}'}, "TF_CONFIG is not like"),
        (tf_config("worker", 2), "task_index=2 (TF_CONFIG) is out of range: worker_hosts names 2"),
        (tf_config("worker", -1, chief=["e:1"]), "task_index=-1 (TF_CONFIG) is out of range"),
        (tf_config("evaluator", 0), "there are no evaluators here"),
        (tf_config("chief", 0), "job_name='chief' is unknown (TF_CONFIG)"),
        (tf_config("chief", 1, chief=["e:1"]), "there is one chief"),
        (tf_config("chief", 0, chief=["e:1", "f:1"]), "TF_CONFIG names 2 chiefs"),
        (tf_config("worker", 0, worker=["e"]), "TF_CONFIG's worker names 'e'"),
        (tf_config("worker", 0, ps=[]), "ps_hosts is missing (TF_CONFIG)"),
        (tf_config("worker", 0, trainer=["e:1"]), "TF_CONFIG names the job 'trainer'"),
    ],
)
def test_a_tf_config_that_cannot_be_is_refused(environ, message_part):
    with pytest.raises(ConfigError) as caught:
        find_lists(options_of(""), values(MODE="ps"), environ=environ)
    assert message_part in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", '{"task": {"type": "worker"}}', '{"cluster": {}}'])
def test_a_tf_config_without_a_cluster_says_nothing(text):
    assert find_lists(options_of(""), values(MODE="ps"), environ={"TF_CONFIG": text}) is None


def test_two_ways_to_say_who_takes_part_are_refused():
    options = options_of("", job_name="ps", task_index=0, **LISTS)
    with pytest.raises(ConfigError, match="or lists of hosts, not two of them"):
        find_lists(options, values(), has_explicit_start=True, environ={})
