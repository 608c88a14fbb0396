"""Ranks of MPICH's mpirun meet without mpi4py: a process manager that speaks PMI 1 carries the address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ranks import ROOT, clean_environment

from rdmacoll._start import launch, pmi
from rdmacoll.benchmarks.hosts import Hosts
from rdmacoll.errors import ConfigError


class Manager:
    """A process manager for several ranks: Hydra's answers, each in a thread of its own."""

    def __init__(self, size: int, answers: dict[str, str] | None = None) -> None:
        self.size, self.answers = size, answers or {}
        self.requests: list[list[str]] = [[] for _ in range(size)]
        self._values: dict[str, str] = {}
        self._barrier = threading.Barrier(size)
        pairs = [socket.socketpair() for _ in range(size)]
        self.ends = [end for _, end in pairs]
        self._own = [own for own, _ in pairs]
        self._threads = [
            threading.Thread(target=self._serve, args=(rank, own), daemon=True)
            for rank, own in enumerate(self._own)
        ]
        for thread in self._threads:
            thread.start()

    def environ(self, rank: int, **more: str) -> dict[str, str]:
        ranks = {"PMI_RANK": str(rank), "PMI_SIZE": str(self.size), "MPI_LOCALNRANKS": str(self.size)}
        return {**ranks, "PMI_FD": str(self.ends[rank].fileno()), **more}

    def close(self) -> None:
        self._barrier.abort()
        for one in (*self.ends, *self._own):
            one.close()

    def _serve(self, rank: int, own: socket.socket) -> None:
        try:
            for line in own.makefile("r"):
                words = dict(word.partition("=")[::2] for word in line.split())
                self.requests[rank].append(words["cmd"])
                own.sendall(f"{self.answers.get(words['cmd']) or self._answer(words)}\n".encode())
        except (OSError, threading.BrokenBarrierError):
            pass

    def _answer(self, words: dict[str, str]) -> str:
        command = words["cmd"]
        if command == "put":
            self._values[words["key"]] = words["value"]
        if command == "barrier_in":
            self._barrier.wait()
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_7_0_node1",
            "put": "cmd=put_result rc=0 msg=success",
            "barrier_in": "cmd=barrier_out",
            "get": f"cmd=get_result rc=0 msg=success value={self._values.get('rdmacoll', '')}",
            "finalize": "cmd=finalize_ack",
        }[command]


@pytest.fixture
def managers() -> Iterator[list[Manager]]:
    made: list[Manager] = []
    yield made
    for manager in made:
        manager.close()
    pmi._MET.clear()


def met(manager: Manager, rank: int, timeout_s: float | None = None, **more: str) -> launch.Launch:
    environ = manager.environ(rank, **more)
    found = launch.by_mpi(environ)
    assert found is not None
    met = pmi.meet(found, environ, timeout_s)
    assert met is not None
    return met


def test_all_ranks_learn_the_address_and_one_secret_and_part_from_the_manager(managers) -> None:
    managers.append(manager := Manager(3))
    found: dict[int, launch.Launch] = {}
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: met(manager, rank)}))
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [0, 1, 2]
    assert len({one.rendezvous for one in found.values()}) == 1
    assert found[0].rendezvous.startswith("127.0.0.1:")
    assert len({one.secret for one in found.values()}) == 1
    assert len(found[0].secret) == 32
    assert repr(found[0].secret) not in repr(found[0])
    assert {one.job for one in found.values()} == {"kvs_7_0_node1"}
    assert found[2].describe().startswith("a PMI launcher (MPICH, Intel MPI) without mpi4py: rank 2 of 3")
    assert all(requests[-1] == "finalize" for requests in manager.requests)
    assert met(manager, 1) is found[1]  # a world may start again


@pytest.mark.parametrize(
    "variable", ["PMI_HOSTNAME", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "HYDRA_BSTRAP_LOCALHOST"]
)
def test_on_several_hosts_the_address_has_the_name_that_mpirun_uses(managers, variable) -> None:
    managers.append(manager := Manager(1))
    found = met(manager, 0, MPI_LOCALNRANKS="4", **{variable: "node7"})
    assert found.rendezvous.startswith("node7:")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"init": "cmd=response_to_init rc=-1"}, r"it answered 'cmd=response_to_init rc=-1' to cmd=init"),
        ({"get": "cmd=get_result rc=0 value=nonsense"}, "it gave no address of rank 0"),
        ({"init": "x" * 5000}, "its answer has no end"),
    ],
)
def test_a_manager_that_does_not_speak_pmi_1_is_an_error_with_the_cure(managers, answers, words) -> None:
    managers.append(manager := Manager(1, answers))
    with pytest.raises(ConfigError, match=f"process manager .*{words}.*pip install"):
        met(manager, 0)


def test_a_manager_that_has_gone_is_an_error(managers) -> None:
    managers.append(manager := Manager(1))
    environ = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "987654"}
    found = launch.by_mpi(environ)
    assert found is not None
    with pytest.raises(ConfigError, match=r"PMI_FD=987654.*Bad file descriptor"):
        pmi.meet(found, environ, None)
    assert pmi.meet(found, {}, None) is None
    manager._own[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConfigError, match=r"closed the connection|Broken pipe"):
        met(manager, 0)


def test_a_rank_that_does_not_come_is_an_error_after_the_limit(managers) -> None:
    managers.append(manager := Manager(2))
    with pytest.raises(ConfigError, match=r"not all ranks .* reached init\(\) within 0.1 s"):
        met(manager, 0, 0.1)


PROGRAM = """
import numpy as np, rdmacoll
from rdmacoll import engine
for start in range(2):
    rdmacoll.init()
    total = engine.allreduce(np.full(3, rdmacoll.rank() + 1.0), op=rdmacoll.Sum)
    print("total", total[0], "nodes", rdmacoll.cross_size())
    rdmacoll.shutdown()
"""


def world_of(
    manager: Manager, tmp_path: Path, prefixes: Sequence[Sequence[str]], **more: Sequence[str]
) -> list[str]:
    """Runs PROGRAM as one process a prefix, without mpi4py. `more` has the variables, by rank. Returns the
    outputs.
    """
    folder = tmp_path / "hidden" / "mpi4py"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('hidden')\n")
    path = os.pathsep.join(map(str, (folder.parent, ROOT)))
    env = {"PYTHONPATH": path, "HOME": str(tmp_path), "RDMACOLL_LOG": "info"}
    processes = [
        subprocess.Popen(
            [*prefix, sys.executable, "-c", PROGRAM],
            env=clean_environment(
                manager.environ(rank, **env, **{name: values[rank] for name, values in more.items()})
            ),
            pass_fds=[manager.ends[rank].fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, prefix in enumerate(prefixes)
    ]
    try:
        texts = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), texts
    source = f"started by a PMI launcher (MPICH, Intel MPI) without mpi4py: rank 0 of {manager.size}"
    assert source in texts[0]
    return texts


def test_two_processes_of_a_manager_are_a_world(managers, tmp_path: Path) -> None:
    managers.append(manager := Manager(2))
    texts = world_of(manager, tmp_path, [[], []])
    assert all(text.count("total 3.0 nodes 1") == 2 for text in texts), texts


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_processes_on_two_hosts_meet_at_the_name_that_mpirun_uses(managers, tmp_path: Path) -> None:
    managers.append(manager := Manager(3))
    with Hosts(2) as hosts:
        host_of = [0, 0, 1]
        texts = world_of(
            manager,
            tmp_path,
            list(hosts.prefixes(host_of).values()),
            PMI_HOSTNAME=[hosts.addresses[host] for host in host_of],
            MPI_LOCALNRANKS=["2", "2", "1"],
        )
    assert all(text.count("total 6.0 nodes 2") == 2 for text in texts), texts
    assert "rendezvous at 10.77.0.1:" in texts[0]
