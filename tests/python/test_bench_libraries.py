"""How the ranks of each library are started."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rdmacoll.benchmarks import environments
from rdmacoll.benchmarks.libraries import LIBRARIES, HostLayout, LaunchContext, commands
from rdmacoll.errors import ConfigError

START = LaunchContext(Path("/env/bin/python"), Path("/tmp/x/socket"), 4000, True)
MACHINE = HostLayout([0, 0])
PREFIXES = {rank: ["ip", "netns", "exec", f"h{rank // 2}"] for rank in range(4)}
HOSTS = HostLayout([0, 0, 1, 1], ["10.77.0.1", "10.77.0.2"], ["h0", "h1"], PREFIXES, "/tmp/on_host")


def words(name: str, place: HostLayout, start: LaunchContext = START) -> list[str]:
    return [" ".join(command) for command in commands(LIBRARIES[name], place, start)]


def test_our_ranks_are_started_by_hand_and_do_not_mistake_a_stop_for_a_failure():
    first, second = words("rdmacoll", MACHINE)
    assert "RDMACOLL_RANK=0 RDMACOLL_SIZE=2 RDMACOLL_RENDEZVOUS=127.0.0.1:4000" in first
    assert "RDMACOLL_RANK=1" in second
    assert "RDMACOLL_PEER_TIMEOUT_S=1000000" in first
    across = words("rdmacoll", HOSTS)
    assert across[3].startswith("ip netns exec h1 env ")
    assert "RDMACOLL_RENDEZVOUS=10.77.0.1:4000" in across[3]
    assert "RDMACOLL_LINK_GBIT" not in across[3]
    assert "RDMACOLL_LINK_GBIT=1 " in words("rdmacoll", replace(HOSTS, gbit=1))[3]


def test_open_mpi_is_started_by_its_launcher():
    (command,) = words("openmpi", MACHINE)
    assert command.startswith("mpirun --oversubscribe --bind-to none --allow-run-as-root -np 2 env ")
    assert "/env/bin/python -m team_rank /tmp/x/socket" in command
    (as_user,) = words("openmpi", MACHINE, replace(START, is_root=False))
    assert "--allow-run-as-root" not in as_user
    (across,) = words("openmpi", HOSTS)
    assert across.startswith("ip netns exec h0 unshare --uts sh -c ")
    assert "--host 10.77.0.1:2,10.77.0.2:2" in across
    assert "plm_rsh_agent /tmp/on_host" in across


def test_hydra_is_that_of_the_environment():
    (command,) = words("intelmpi", MACHINE)
    assert command.startswith("/env/bin/mpiexec.hydra -n 2 env ")
    assert "UCX_TLS" not in words("mpich", MACHINE)[0]
    (across,) = words("mpich", HOSTS)
    assert "UCX_TLS=tcp,self" in across
    assert "-launcher-exec /tmp/on_host -iface eth0 -hosts 10.77.0.1,10.77.0.2 -ppn 2 -n 4" in across


def test_horovod_on_gloo_is_told_how_to_reach_each_host():
    (command,) = commands(LIBRARIES["horovod-gloo"], HOSTS, START)
    options = json.loads(command[-1])
    assert options["names"] == ["h0", "h0", "h1", "h1"]
    assert options["hosts"][2][:3] == ["ip", "netns", "exec"]
    # The host's name is the address that Horovod looks up by it.
    assert (options["hosts"][2][3], options["hosts"][2][-1]) == ("h1", "10.77.0.2")
    assert (options["address"], options["interface"]) == ("10.77.0.1", "eth0")


def test_a_limit_knows_its_rank():
    options = [json.loads(command[-1]) for command in commands(LIBRARIES["stream"], HOSTS, START)]
    assert [entry["rank"] for entry in options] == [0, 1, 2, 3]
    assert {(entry["address"], entry["port"]) for entry in options} == {("10.77.0.1", 4000)}


def test_an_environment_is_there_once_its_installation_was_done(tmp_path):
    assert environments.python_of("mpich", tmp_path) is None
    folder = environments.folder_of("mpich", tmp_path)
    folder.mkdir(parents=True)
    assert environments.python_of("mpich", tmp_path) is None
    (folder / "installed").touch()
    assert environments.python_of("mpich", tmp_path) == folder / "bin" / "python"
    assert environments.python_of("own", tmp_path) == Path(sys.executable)


@pytest.mark.parametrize("succeeds", [True, False])
def test_one_process_installs_an_environment_at_a_time(tmp_path, monkeypatch, succeeds):
    at_work, other_ran = threading.Event(), threading.Event()
    begun, reports = [], []
    marker = environments.folder_of("mpich", tmp_path) / "installed"

    def run(name, command):
        begun.append(threading.current_thread().name)
        marker.parent.mkdir(parents=True, exist_ok=True)
        if begun == ["first"]:
            at_work.set()
            assert other_ran.wait(60)
            if not succeeds:
                raise ConfigError("no network")

    def report(line):
        reports.append(line)
        if "waiting" in line:
            other_ran.set()

    def first():
        with contextlib.nullcontext() if succeeds else pytest.raises(ConfigError, match="no network"):
            environments.install("mpich", tmp_path, lambda _: None)

    monkeypatch.setattr(environments, "_run", run)
    thread = threading.Thread(target=first, name="first")
    thread.start()
    try:
        assert at_work.wait(60)
        environments.install("mpich", tmp_path, report)
    finally:
        other_ran.set()
        thread.join()
    assert marker.exists()
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    assert reports[0] == f"mpich: waiting for {holder}, which is installing it"
    if succeeds:
        assert set(begun) == {"first"}
        assert reports[1:] == ["mpich: installed"]
    else:
        assert begun[0] == "first"
        assert "MainThread" in begun
        assert "mpich: installing into" in reports[1]


def test_the_lock_of_an_environment_names_no_process_that_has_ended(tmp_path, monkeypatch):
    lock = tmp_path / "peers" / "mpich.lock"
    at_work = []

    def run(name, command):
        environments.folder_of("mpich", tmp_path).mkdir(exist_ok=True)
        at_work.append(lock.read_text())

    monkeypatch.setattr(environments, "_run", run)
    environments.install("mpich", tmp_path, lambda _: None)
    assert at_work[0] == f"process {os.getpid()} on {os.uname().nodename}"
    assert lock.read_text() == ""


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "peers").touch()
    with pytest.raises(ConfigError, match=r"mpich\.lock cannot be written: .*Set RDMACOLL_CACHE to a folder"):
        environments.install("mpich", tmp_path, lambda _: None)


def test_an_environment_is_installed_where_files_have_no_locks(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    reports = []
    monkeypatch.setattr(environments.fcntl, "flock", flock)
    monkeypatch.setattr(
        environments, "_run", lambda *_: environments.folder_of("mpich", tmp_path).mkdir(exist_ok=True)
    )
    environments.install("mpich", tmp_path, reports.append)
    assert "mpich.lock cannot be locked: No locks available" in reports[0]
    assert environments.python_of("mpich", tmp_path) is not None


def test_a_python_that_is_too_new_is_said(monkeypatch):
    monkeypatch.setattr(environments.shutil, "which", lambda _: None)
    monkeypatch.setattr(environments.sys, "version_info", (3, 13, 1))
    with pytest.raises(ConfigError, match=r"no Python from 3\.9 to 3\.11 beside .*, which is 3\.13"):
        environments.base_python((3, 11))
    monkeypatch.setattr(environments.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert environments.base_python((3, 11)) == "/usr/bin/python3.11"
    assert environments.base_python((3, 13)) == sys.executable
