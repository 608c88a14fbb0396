"""Ranks of mpirun meet without mpi4py, at an address that follows from the launcher's variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from marks import slow
from rank_program import program
from ranks import ROOT, Outcome, Rank, Run, mpirun_command, run

from rdmacoll._start import launch
from rdmacoll._start.bootstrap import described_launch, find_start
from rdmacoll._start.mpi_rendezvous import launch_without_mpi
from rdmacoll.benchmarks.hosts import Hosts
from rdmacoll.errors import ConfigError

JOB = "1520893953"
KEY = "a3e18bed15d2af03-b0e020695082545c"
OF_NODE1 = "1520893952.0;tcp://127.0.0.1,10.1.2.3,172.17.0.1:45577;tcp6://[fd00::2]:35521"


def open_mpi(rank: int, size: int, here: int, *, daemon: str = OF_NODE1, **more: str) -> dict[str, str]:
    """The variables of a rank of Open MPI's mpirun on node1, with `here` ranks on the rank's node."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(here),
        "PMIX_NAMESPACE": JOB,
        "OMPI_MCA_orte_precondition_transports": KEY,
        "OMPI_MCA_orte_hnp_uri": OF_NODE1,
        "OMPI_MCA_orte_local_daemon_uri": daemon,
        **more,
    }


def without_mpi(environ: dict[str, str]) -> launch.Launch:
    found = launch.by_mpi(environ)
    assert found is not None
    return launch_without_mpi(found, environ, "No module named 'mpi4py'")


def test_ranks_of_one_node_meet_at_one_port_of_loopback_with_one_secret() -> None:
    found = [without_mpi(open_mpi(rank, 4, 4)) for rank in range(4)]
    assert {one.rendezvous for one in found} == {found[0].rendezvous}
    host, port = launch.split_address(found[0].rendezvous)
    assert host == "127.0.0.1"
    assert launch.PORT_FIRST <= port < launch.PORT_FIRST + launch.PORTS
    assert {one.secret for one in found} == {found[0].secret}
    assert len(found[0].secret) == 32
    assert KEY not in repr(found[0])
    assert repr(found[0].secret) not in repr(found[0])
    assert found[0].job == f"PMIX_NAMESPACE={JOB}"
    assert not found[0].is_mpi
    assert found[3].describe() == (
        "Open MPI without mpi4py: rank 3 of 4 (from OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE), "
        f"rendezvous at {found[0].rendezvous}"
    )


def test_another_job_has_another_port_and_another_secret() -> None:
    one = without_mpi(open_mpi(0, 2, 2))
    more = {"PMIX_NAMESPACE": "99", "OMPI_MCA_orte_precondition_transports": KEY.replace("a", "b")}
    other = without_mpi(open_mpi(0, 2, 2, **more))
    assert one.rendezvous != other.rendezvous
    assert one.secret != other.secret


@pytest.mark.parametrize("key", ["", "0-0", "a3e18bed15d2af03", "Z" * 33])
def test_without_a_key_of_open_mpi_the_file_has_the_secret(key: str) -> None:
    assert without_mpi(open_mpi(0, 2, 2, OMPI_MCA_orte_precondition_transports=key)).secret == b""


def test_ranks_of_several_nodes_meet_at_mpiruns_first_address() -> None:
    daemon = "1520893952.1;tcp://10.1.2.4:50000"
    found = [without_mpi(open_mpi(0, 2, 1)), without_mpi(open_mpi(1, 2, 1, daemon=daemon))]
    assert found[0].rendezvous == found[1].rendezvous
    assert found[0].rendezvous.startswith("10.1.2.3:")


def test_in_an_allocation_of_slurm_they_meet_at_its_first_node() -> None:
    found = without_mpi(open_mpi(5, 8, 4, SLURM_JOB_NODELIST="gpu[07-08]"))
    assert found.rendezvous.startswith("gpu07:")


CURE = (
    r"pip install 'rdmacoll\[mpi\]', or give all ranks RDMACOLL_RENDEZVOUS=host:port of rank 0 "
    r"\(mpirun -x RDMACOLL_RENDEZVOUS=node1:4000\)\.$"
)
NO_HOST = "no variable names the host of rank 0"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (open_mpi(0, 2, 1, daemon="1520893952.1;tcp://10.1.2.4:5"), "rank 0 is on another host than mpirun"),
        (open_mpi(1, 2, 1, OMPI_MCA_orte_hnp_uri=""), NO_HOST),
        (open_mpi(1, 2, 1, OMPI_MCA_orte_hnp_uri="1.0;tcp://127.0.0.1:5"), NO_HOST),
        (open_mpi(1, 2, 1, OMPI_MCA_orte_hnp_uri="1.0;tcp://a b,,::1:5"), NO_HOST),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, NO_HOST),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, "no variable names the job"),
    ],
)
def test_variables_that_do_not_tell_the_address_are_an_error_with_the_cure(environ, words) -> None:
    with pytest.raises(ConfigError, match=f"cannot be imported .*mpi4py.*{words}. {CURE}"):
        without_mpi(environ)


def test_an_address_by_hand_needs_no_rank_and_size_under_an_mpi_launcher() -> None:
    environ = {"PMI_RANK": "1", "PMI_SIZE": "2", "RDMACOLL_RENDEZVOUS": "node1:4000"}
    found = find_start(environ=environ).launch
    assert (found.rank, found.size, found.rendezvous, found.secret) == (1, 2, "node1:4000", b"")
    assert found.source == "a PMI launcher (MPICH, Intel MPI) and RDMACOLL_RENDEZVOUS"
    assert described_launch(environ) == found
    keyed = find_start(environ=open_mpi(1, 4, 2, RDMACOLL_RENDEZVOUS="node1:4000")).launch
    assert (keyed.rendezvous, len(keyed.secret)) == ("node1:4000", 32)
    assert find_start(rendezvous="node2:4000", environ=open_mpi(1, 4, 2)).launch.rendezvous == "node2:4000"
    with pytest.raises(ConfigError, match="RDMACOLL_RENDEZVOUS='node1' is not host:port"):
        find_start(environ={**environ, "RDMACOLL_RENDEZVOUS": "node1"})
    with pytest.raises(ConfigError, match="without RDMACOLL_SIZE"):
        find_start(environ={**environ, "RDMACOLL_RANK": "1"})


# ---- with mpirun ----


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Variables with which mpi4py is not there, and the home is empty."""
    folder = tmp_path / "hidden"
    (folder / "mpi4py").mkdir(parents=True)
    (folder / "mpi4py" / "__init__.py").write_text("raise ImportError('hidden')\n")
    (tmp_path / "home").mkdir()
    path = ":".join(map(str, (folder, ROOT, ROOT / "tests")))
    return {"PYTHONPATH": path, "HOME": str(tmp_path / "home"), "RDMACOLL_SECRET_FILE": ""}


BODY = """
assert engine.allreduce(np.full(3, me + 1.0), op=rdmacoll.Sum)[0] == size * (size + 1) / 2
kept = {"rank": me, "size": size, "local": rdmacoll.local_size(), "mpi": "mpi4py.MPI" in sys.modules}
"""
AFTER = "rdmacoll.shutdown()\nreport(kept, me)"


def test_mpirun_starts_a_world_without_mpi4py_and_without_a_file(
    environ: dict[str, str], tmp_path: Path
) -> None:
    outcome = run(program(BODY, after=AFTER), 2, launcher="mpirun", env=environ)
    expected = [{"rank": rank, "size": 2, "local": 2, "mpi": False} for rank in range(2)]
    assert outcome.succeeded() == expected
    assert "started by Open MPI without mpi4py: rank 0 of 2" in outcome.text()
    assert "rendezvous at 127.0.0.1:" in outcome.text()
    assert not list((tmp_path / "home").iterdir())


def test_two_jobs_of_mpirun_at_once_do_not_meet(environ: dict[str, str]) -> None:
    text = program(BODY, after=AFTER)
    with (
        Run(text, 2, launcher="mpirun", env=environ) as one,
        Run(text, 2, launcher="mpirun", env=environ) as two,
    ):
        for job in (one, two):
            assert [report["size"] for report in job.finish().succeeded()] == [2, 2]


def test_a_rank_of_mpirun_with_another_secret_is_refused(environ: dict[str, str]) -> None:
    """The file that the user names beats the launcher's key."""
    body = (
        "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    os.environ['RDMACOLL_SECRET_FILE'] = "
    )
    body += "os.environ['HOME'] + '/other'\n"
    outcome = run(body + program(""), 2, launcher="mpirun", env={**environ, "RDMACOLL_START_TIMEOUT_S": "20"})
    assert outcome.ranks[0].code != 0
    assert "secret" in outcome.text()


def test_one_process_of_mpirun_is_a_world_of_one(environ: dict[str, str]) -> None:
    outcome = run(program(BODY, after=AFTER), 1, launcher="mpirun", env=environ)
    assert outcome.succeeded() == [{"rank": 0, "size": 1, "local": 1, "mpi": False}]


def test_an_error_of_one_rank_reaches_the_other(environ: dict[str, str]) -> None:
    body = "if me == 1:\n    raise ZeroDivisionError('planted')\nengine.allreduce(np.ones(3))"
    outcome = run(program(body), 2, launcher="mpirun", env=environ)
    assert outcome.ranks[0].code != 0
    assert "ZeroDivisionError" in outcome.text()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


def across(hosts: Hosts, numbers: list[int], tmp_path: Path, environ: dict[str, str], body: str) -> Outcome:
    """Runs `body` by an mpirun on host 0, with one rank on each of the hosts `numbers`."""
    shell = str(hosts.shell(tmp_path))
    (tmp_path / "program.py").write_text(program(body, after=AFTER))
    command = [*mpirun_command(len(numbers)), "--mca", "plm_rsh_agent", shell, "--leave-session-attached"]
    command += ["--host", ",".join(hosts.addresses[number] for number in numbers)]
    names = [*environ, "RANKS_FOLDER", "RDMACOLL_START_TIMEOUT_S"]
    command += [word for name in names for word in ("-x", name)]
    text = f"""
import os, subprocess, sys
sys.exit(subprocess.call({[*command, sys.executable, str(tmp_path / "program.py")]!r}))
"""
    # The only rank of the launcher "hand" is mpirun itself.
    with Run(text, 1, launcher="hand", env=environ, prefix_of={0: [shell, hosts.addresses[0]]}) as started:
        outcome = started.finish(120)
        reports = [started.reported(rank) for rank in range(len(numbers))]
    return Outcome([Rank(outcome.ranks[0].code, outcome.ranks[0].output, report) for report in reports])


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@needs_root
def test_mpirun_starts_ranks_of_several_hosts_without_mpi4py(hosts, tmp_path, environ) -> None:
    outcome = across(hosts, [0, 1], tmp_path, environ, BODY)
    expected = [{"rank": rank, "size": 2, "local": 1, "mpi": False} for rank in range(2)]
    assert outcome.succeeded() == expected
    assert "rendezvous at 10.77.0.1:" in outcome.text()


@needs_root
@pytest.mark.parametrize("_", [slow("once")])
def test_where_rank_0_is_on_another_host_than_mpirun_the_address_is_asked_for(
    hosts, tmp_path, environ, _
) -> None:
    outcome = across(hosts, [1, 2], tmp_path, environ, BODY)
    assert outcome.ranks[0].code != 0
    assert "rank 0 is on another host than mpirun" in outcome.text()
    assert "mpirun -x RDMACOLL_RENDEZVOUS=node1:4000" in outcome.text()
    by_hand = across(hosts, [1, 2], tmp_path, {**environ, "RDMACOLL_RENDEZVOUS": "10.77.0.2:4000"}, BODY)
    assert [report["local"] for report in by_hand.succeeded()] == [1, 1]
