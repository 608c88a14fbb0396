"""`rdmacoll doctor`: a fault that is planted in recorded facts is named first, with its cure."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import ROOT, clean_environment
from test_doctor import MIB, PLAIN, STATES, settings

from rdmacoll._start.launch import Launch
from rdmacoll.cli import doctor, doctor_gather, doctor_gather_network as gather_network
from rdmacoll.cli.doctor_facts import (
    UNLIMITED,
    Cores,
    Interface,
    Limit,
    Machine,
    Memory,
    Network,
    Start,
    Threads,
    Variables,
)
from rdmacoll.cli.doctor_gather_groups import group_memory

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

LO, ETH = Interface("lo", "127.0.0.1", 65536), Interface("eth0", "10.1.2.3", 9000)
BRIDGE = Interface("docker0", "172.17.0.1", 1500, is_bridge=True)
# A sound machine with all notes that a sound machine may have.
USUAL = replace(
    PLAIN,
    memory=Memory(Limit(UNLIMITED, UNLIMITED), transparent="never"),
    network=Network((LO, ETH, BRIDGE), ("10.1.2.3",)),
)
GROUP = Memory(Limit(), transparent="madvise", group_limit=512 * MIB, group_file="/cg/memory.max")
OF_TWO = Start(Launch("Slurm's srun", 0, 2))


def planted(
    name: str, state: str, seen: str, cure: str, **changes: Any
) -> tuple[Machine, str, str, str, str]:
    """Returns a sound machine with one fault, and the finding that the doctor has to report."""
    return replace(USUAL, **changes), name, state, seen, cure


LO_DOWN = Network((replace(LO, is_up=False), ETH))
NAMELESS, AT_BRIDGE = Network((LO, ETH), problem="unknown"), Network((LO, BRIDGE), ("172.17.0.1",))
GIVEN = settings(RDMACOLL_BUF_SIZE=str(1 << 30))
NO_SRUN = Start(problem="SLURM_NTASKS=4: srun has not started this")
PLANTED = [
    planted("loopback", "problem", "lo is down", "ip link set lo up", network=LO_DOWN),
    planted("loopback", "problem", "there is no lo", "ip link set lo up", network=Network((ETH,))),
    planted("host name", "note", "node7 has no address here: unknown", "/etc/hosts", network=NAMELESS),
    planted("host name", "problem", "unknown", "RDMACOLL_RENDEZVOUS", network=NAMELESS, start=OF_TWO),
    planted("host name", "problem", "bridge docker0", "/etc/hosts", network=AT_BRIDGE, start=OF_TWO),
    planted(
        "interfaces",
        "problem",
        "RDMACOLL_INTERFACE=ib0, and no interface that is up has that name or network; there are: eth0 "
        "10.1.2.3 (MTU 9000)",
        "name one of these",
        settings=settings(RDMACOLL_INTERFACE="ib0"),
    ),
    planted("memory", "note", "512 MiB (/cg/memory.max)", "RDMACOLL_BUF_SIZE=134217728", memory=GROUP),
    planted("memory", "problem", "has 1 GiB", "srun --mem", memory=GROUP, settings=GIVEN),
    planted("threads", "note", "32 threads, for 8 cores", "OMP_NUM_THREADS=2", threads=Threads(8, 4)),
    planted("threads", "problem", "100 processes", "ulimit -u 999", threads=Threads(limit=Limit(100, 999))),
    planted("threads", "problem", "100 processes", "limits.d", threads=Threads(limit=Limit(100, 100))),
    planted("TF_CONFIG", "problem", "is no JSON", "unset it", variables=Variables(tf_config="is no JSON")),
    planted("Horovod", "note", "HOROVOD_X is set", "BUCKET_BYTES", variables=Variables(("HOROVOD_X",))),
    planted(
        "secret",
        "problem",
        "chmod 600 s",
        "follow the message",
        variables=Variables(secret="0644: chmod 600 s"),
    ),
    planted("start", "problem", "SLURM_NTASKS=4", "set all of the variables", start=NO_SRUN),
]


@pytest.mark.parametrize(("machine", "name", "state", "seen", "cure"), PLANTED)
def test_a_planted_fault_is_named_first_with_its_cure(machine, name, state, seen, cure):
    first = doctor.examine(machine)[0]
    assert (first.name, first.state) == (name, state), first
    assert seen in first.seen
    assert cure in first.cure
    assert first.why
    assert first.check


@pytest.mark.parametrize("row", range(len(STATES)))
def test_whatever_is_amiss_comes_before_what_the_machine_is_like(row):
    machine, name, state, _ = STATES[row]
    findings = doctor.examine(machine)
    assert [one.urgency for one in findings] == sorted(one.urgency for one in findings)
    place = next((i for i, one in enumerate(findings) if one.name == name), None)
    if state in ("problem", "note") and not findings[place or 0].is_standing:
        assert all(one.state != "ok" and not one.is_standing for one in findings[: place or 0])


def test_a_sound_machine_has_standing_notes_alone():
    findings = doctor.examine(USUAL)
    assert {one.name for one in findings if one.state != "ok"} == {"devices", "huge pages"}
    text = {one.name: one.seen for one in findings}
    assert text["loopback"] == "lo is up (MTU 65536)"
    assert text["host name"] == "node7 is 10.1.2.3"
    assert text["interfaces"].startswith(
        "eth0 10.1.2.3 (MTU 9000), docker0 172.17.0.1 (MTU 1500): all that are"
    )
    assert text["memory"] == "no limit"
    assert text["threads"] == "no limit"


def test_one_network_chooses_its_interfaces():
    chosen = replace(USUAL, settings=settings(RDMACOLL_INTERFACE="10.1.0.0/16", RDMACOLL_PORT="4000"))
    text = {one.name: one.seen for one in doctor.examine(chosen)}["interfaces"]
    text_seen = "as RDMACOLL_INTERFACE=10.1.0.0/16 says; RDMACOLL_PORT=4000"
    assert text == f"eth0 10.1.2.3 (MTU 9000): {text_seen}"


def test_a_check_quotes_a_path_with_a_space():
    missing = replace(USUAL.engine, problem="it is missing", path="/my clone/librdmacoll.so")
    (found,) = [one for one in doctor.examine(replace(USUAL, engine=missing)) if one.seen == "it is missing"]
    assert found.check == "ls -l '/my clone/librdmacoll.so'; rdmacoll config"


# ---- how the facts are gathered ----


def test_interfaces_are_read_from_the_kernel(tmp_path):
    (tmp_path / "class/net/lo/bridge").mkdir(parents=True)
    (tmp_path / "class/net/elsewhere").mkdir()
    found = gather_network.interfaces(tmp_path)
    assert {one.name for one in found} == {name for _, name in socket.if_nameindex()}
    assert next(one for one in found if one.name == "lo") == Interface("lo", "127.0.0.1", 65536, True, True)
    (plain,) = [one for one in gather_network.interfaces(tmp_path / "none") if one.name == "lo"]
    assert not plain.is_bridge
    unknown = gather_network.network(tmp_path, "no-such-host.invalid")
    assert unknown.problem
    assert unknown.interfaces == found
    assert socket.gethostbyname("localhost") in gather_network.network(tmp_path, "localhost").addresses


@needs_root
def test_a_namespace_of_its_own_has_its_own_interfaces_though_sys_shows_others():
    program = (
        "from pathlib import Path; from rdmacoll.cli.doctor_gather_network import interfaces; "
        "print([(one.name, one.is_up) for one in interfaces(Path('/sys'))])"
    )
    said = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "('lo', False)" in said.stdout, said.stderr


def test_variables_are_judged(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0f2a9c51d7e8b36411aa20cf")
    secret.chmod(0o644)
    variables = {"HOROVOD_RANK": "1", "TF_CONFIG": "{", "OMP_NUM_THREADS": "4,2", "LOCAL_WORLD_SIZE": "2"}
    found = gather_network.variables(variables, str(secret))
    assert found.horovod == ("HOROVOD_RANK",)
    assert "is not JSON" in found.tf_config
    assert "chmod 600" in found.secret
    assert gather_network.threads(variables, Limit(9, 9)) == Threads(4, 2, Limit(9, 9))
    assert gather_network.variables({}, str(tmp_path / "none")) == Variables()
    assert not (tmp_path / "none").exists()


def test_the_least_limit_of_memory_counts(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    for path, text in (("", "max"), ("job", "1073741824"), ("job/step", "2147483648")):
        folder = tmp_path / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(text)
    limit, file = group_memory(tmp_path / "sys", tmp_path / "proc")
    assert limit == 1 << 30
    assert file.endswith("job/memory.max")
    assert group_memory(tmp_path / "nothing", tmp_path / "nothing") == (None, "")


def test_the_loaders_error_is_said_and_not_what_is_printed_behind_it():
    text = (
        "Traceback (most recent call last):\n  File x\n"
        "tensorflow.python.framework.errors_impl.NotFoundError: ops.so: undefined symbol: x\n"
        "2026-01-01 00:00:00.0: I tensorflow/core/platform/cpu_feature_guard.cc:182] This binary is\n"
    )
    text_seen = doctor_gather._last_line(text)
    assert text_seen == "tensorflow.python.framework.errors_impl.NotFoundError: ops.so: undefined symbol: x"
    assert doctor_gather._last_line("first\nlast\n\n") == "last"


def test_a_batch_script_without_srun_is_a_finding_of_the_start(monkeypatch):
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}.items():
        monkeypatch.setenv(name, value)
    assert "srun" in doctor_gather._start().problem


@pytest.mark.parametrize("how", ["missing", "broken"])
def test_numpy_that_cannot_be_imported_is_named_with_the_cure(tmp_path, how):
    (tmp_path / "numpy").mkdir()
    reason = "libopenblas.so.0: cannot open shared object file"
    if how == "broken":
        (tmp_path / "numpy/__init__.py").write_text(f"raise ImportError({reason!r})\n")
    else:
        (tmp_path / "numpy/__init__.py").write_text(
            "raise ModuleNotFoundError(\"No module named 'numpy'\")\n"
        )
    done = subprocess.run(
        [sys.executable, "-m", "rdmacoll", "doctor"],
        env={**clean_environment(), "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "rdmacoll needs numpy, which cannot be imported" in last
    assert (reason if how == "broken" else "No module named") in last
    assert "pip install --force-reinstall numpy" in last


def test_the_facts_of_this_machine_are_gathered():
    machine = doctor_gather.gather()
    assert not set(machine.broken) & {"network", "threads", "variables", "memory"}
    assert any(one.name == "lo" for one in machine.network.interfaces)
    assert isinstance(machine.cores, Cores)
    assert Path("/proc").is_dir()
