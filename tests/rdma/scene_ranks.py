"""Compares the results of ranks over RDMA with numpy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from ranks import ROOT, Outcome, clean_environment, mpirun_command, run

from rdma.scene import ARE_SOFT, ARE_THE_GUESTS, DEVICES, RDMA, Traffic, main, own_device, seed

PROGRAMS = ROOT / "tests" / "multiprocess"
ASYNCHRONOUS = PROGRAMS / "ps_training.py"
OWN_DEVICE = Path(__file__).with_name("own_device.py")

# The largest sum needs several written chunks. Each rank has its own values.
SUMS = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
for turn in range(3):
    for size in (1, 3000, 1_000_003):
        ramp = np.arange(size, dtype=np.float64)
        got = rdmacoll.engine.allreduce(ramp * (me + 1) + turn, rdmacoll.Sum)
        assert (got == ramp * (count * (count + 1) / 2) + count * turn).all(), (turn, size)
rdmacoll.engine.barrier()  # a rank has its sum before the others have all of theirs from it
report({"transport": rdmacoll._world.world.describe()["transport"], **rdmacoll.metrics()})
rdmacoll.shutdown()
"""


def _run_over_rdma(program: str, ranks: int, *arguments: str, **env: str) -> list[Any]:
    """Runs a program and returns the ranks' reports. Each rank has its own device if there are enough."""
    traffic = Traffic()
    reports = run(
        PROGRAMS / program,
        ranks,
        arguments=list(arguments),
        env={**RDMA, **env},
        env_of=own_device(ranks),
        deadline_s=280,
    ).succeeded()
    assert not traffic.silent(ranks)
    return reports


def _compare(ranks: int, **env: str) -> None:
    """Compares all collectives, dtypes and operators."""
    for entry in _run_over_rdma("numpy_collectives.py", ranks, str(seed()), **env):
        assert entry["transport"] == "rdma", entry
        assert entry["cases"] > 250, entry
        assert entry["metrics"]["registrations"] > 0, entry
        assert entry["metrics"]["bytes_sent"] > 10_000_000, entry


def check_two_ranks() -> None:
    _compare(2)


def check_three_ranks_in_canonical_order() -> None:
    _compare(3, RDMACOLL_ORDER="canonical")


def check_four_ranks_in_canonical_order() -> None:
    _compare(4, RDMACOLL_ORDER="canonical")


def check_process_sets_that_overlap() -> None:
    """Four ranks use static, added and removed process sets at the same time."""
    for entry in _run_over_rdma("process_sets.py", 4, str(seed()), "4"):
        assert entry["cases"] > 0, entry


def check_ranks_that_join() -> None:
    """Three ranks with uneven data join, in the log and in plans, in the world and in a process set."""
    for entry in _run_over_rdma("joins.py", 3):
        assert entry["plans_left"] > 0, entry


def _sums(ranks: int, **options: Any) -> Outcome:
    """Runs a few large sums. Checks that every rank used RDMA and sent the bytes of an allreduce."""
    outcome = run(SUMS, ranks, **{"env": RDMA, **options})
    for entry in outcome.succeeded():
        assert entry["transport"] == "rdma", entry
        # Each rank of an allreduce sends at least 2(p-1)/p of the bytes, here of 3 times 8 MB.
        assert entry["bytes_sent"] >= 24_000_000, entry
        assert entry["bytes_received"] >= 24_000_000, entry
        # The devices work while the processor reduces. If both ends share a processor, they do so less often.
        assert 0 < entry["bytes_reduced_beside_sends"] <= entry["bytes_reduced"], entry
    return outcome


# 4 MB of numpy's memory, which is registered with the devices. Each rank leaves as soon as it has its sum.
PREPARED = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
values, out = np.empty(1_000_003, np.float32), np.empty(1_000_003, np.float32)
for call in (rdmacoll.engine.prepare_allreduce(values, values, rdmacoll.Sum),
             rdmacoll.engine.prepare_allreduce(values, out, rdmacoll.Sum)):
    for turn in range(5):
        if turn == 3:
            before = rdmacoll.metrics()
        values[:] = np.arange(values.size) % 1000 * (me + 1) + turn
        got = call()
        expected = np.arange(values.size) % 1000 * (count * (count + 1) / 2) + count * turn
        assert (got == expected.astype(np.float32)).all(), turn
report([after - before[name] for name, after in rdmacoll.metrics().items()
        if name in ("bytes_copied", "registrations")])
rdmacoll.shutdown()
"""


def check_prepared_memory_is_not_copied() -> None:
    for ranks in (2, 3):
        outcome = run(PREPARED, ranks, env=RDMA, env_of=own_device(ranks))
        for copied, registrations in outcome.succeeded():
            assert (copied, registrations) == (0, 0), outcome.text()


# The tensor has five times the size of the smallest pool.
LARGE = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
ramp = np.arange(10_000_000, dtype=np.float64)
for turn in range(2):
    values = ramp * (me + 1) + turn
    rdmacoll.engine.allreduce(values, rdmacoll.Sum, out=values)
    assert (values == ramp * (count * (count + 1) / 2) + count * turn).all(), turn
rdmacoll.engine.barrier()
report({"transport": rdmacoll._world.world.describe()["transport"], **rdmacoll.metrics()})
rdmacoll.shutdown()
"""


def check_a_tensor_larger_than_the_pool_goes_in_pieces_and_it_is_said_once() -> None:
    traffic = Traffic()
    env = {**RDMA, "TF_RDMA_BUF_SIZE": "16M"}
    outcome = run(LARGE, 2, env=env, env_of=own_device(2), deadline_s=120)
    for entry in outcome.succeeded():
        assert entry["transport"] == "rdma", entry
        assert entry["bytes_sent"] >= 160_000_000, entry
    logged = [rank.output.count("Raise RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE)") for rank in outcome.ranks]
    # The best size of the pool depends on the link. For the guest's link, 16 MiB are too small.
    assert logged == [1, 0] or (not ARE_SOFT and logged == [0, 0]), outcome.text()
    assert not traffic.silent(2)


def check_under_mpirun_each_local_rank_on_its_device() -> None:
    traffic = Traffic()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(SUMS)
        file.flush()
        env = {**RDMA, "RDMACOLL_DEVICE": ",".join(DEVICES)}
        outcome = run(OWN_DEVICE, 2, launcher="mpirun", env=env, arguments=[file.name])
    assert [entry["transport"] for entry in outcome.succeeded()] == ["rdma", "rdma"]
    assert not traffic.silent(2)


def check_parameter_servers_sum_over_rdma() -> None:
    """Two workers and two servers: a worker pushes all of its bytes and pulls the same number."""
    traffic = Traffic()
    env = {**RDMA, "RDMACOLL_MODE": "ps", "RDMACOLL_NUM_SERVERS": "2"}
    reports = run(SUMS, 4, env=env, env_of=own_device(4)).succeeded()
    assert reports[2:] == [None, None]
    for entry in reports[:2]:
        assert entry["transport"] == "rdma", entry
        assert entry["bytes_sent"] >= 24_000_000, entry
        assert entry["bytes_received"] >= 24_000_000, entry
    assert not traffic.silent(4)


def _trained(mishap: str) -> list[Any]:
    """Runs two workers and two asynchronous servers, one device each. Returns the workers' reports."""
    traffic = Traffic()
    outcome = run(ASYNCHRONOUS, 4, env=RDMA, env_of=own_device(4), arguments=["2", mishap], deadline_s=200)
    assert not traffic.silent(4)
    if mishap == "worker dies":
        assert [rank.code for rank in outcome.ranks] == [0, 7, 0, 0], outcome.text()
        assert "The server goes on with 1 worker" in outcome.ranks[2].output, outcome.text()
        return [outcome.ranks[0].report]
    return outcome.succeeded()[:2]


def check_asynchronous_servers_train_over_rdma() -> None:
    """The workers push and pull dense tensors and rows. They also use their ordinary world."""
    for found in _trained("stale"):
        assert found["distance"] < 1e-2, found
        assert abs(found["b"] - 0.2) < 1e-6, found
        assert np.allclose(found["words"], [0.4, 0.1, 0]), found
        assert found["sum"] == 2, found


def check_asynchronous_servers_go_on_without_a_worker_over_rdma() -> None:
    for found in _trained("worker dies"):
        assert found["distance"] < 1e-2, found
        assert [server["lost"] for server in found["stats"]] == [1, 1], found
        assert found["sum"].startswith("RankFailedError: rank 1 ("), found


def check_rank_0_says_once_what_was_chosen() -> None:
    outcome = _sums(2, env_of=own_device(2))
    (line,) = (row for row in outcome.ranks[0].output.splitlines() if "RDMA over" in row)
    assert line in outcome.ranks[0].output.splitlines()[0], outcome.text()
    assert f"{DEVICES[0]} port 1 (" in line
    assert "Gbit/s" in line
    assert f"{DEVICES[0]} was requested" in line
    assert re.search(r"GID \d+ ::ffff:10\.9\.0\.1, in software", line) or not ARE_THE_GUESTS, line
    assert "RDMA over" not in outcome.ranks[1].output


def check_automatic_choice() -> None:
    """All ranks find the same device. This device is both ends."""
    text = _sums(2).ranks[0].output
    assert "RDMA over" in text
    assert "first active port" in text


def check_two_rails_share_the_bytes() -> None:
    if len(DEVICES) < 2:
        return
    traffic = Traffic()
    both = ",".join(DEVICES[:2])
    text = _sums(2, env={**RDMA, "RDMACOLL_DEVICE": both}).ranks[0].output
    assert text.count("RDMA over") == 2, text
    if ARE_SOFT:
        packets = [traffic.packets(device) for device in DEVICES[:2]]
        assert min(packets) > max(packets) / 4, packets


def check_selftest() -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "selftest.json"
        options = ["--transport", "rdma", "--algorithm", "auto", "--json", str(written)]
        command = [*mpirun_command(2), sys.executable, "-m", "rdmacoll", "selftest", *options]
        # With a level of the program, each world logs its start.
        environ = clean_environment({"TF_RDMA_BUF_SIZE": RDMA["TF_RDMA_BUF_SIZE"], "RDMACOLL_LOG": "info"})
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(written.read_text())
    assert found["ok"], found
    assert found["cases"] > 300, found
    assert found["failed"] == 0, found
    assert "RDMA over" in done.stderr + done.stdout


if __name__ == "__main__":
    main(globals())
