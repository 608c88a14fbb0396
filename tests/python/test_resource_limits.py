"""Limits of threads and memory: an error names the need, or the engine copes with the limit."""

from __future__ import annotations

import pytest
from ranks import run

# A rank under a limit that the program sets itself. The limit on threads does not hold for root.
LIMITED = """
import os, resource, sys
import numpy as np
import rdmacoll

if os.environ.get("AS_NOBODY") and os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
if os.environ.get("THREADS"):
    most = int(os.environ["THREADS"])
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
if os.environ.get("ADDRESS_MIB"):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + (int(os.environ["ADDRESS_MIB"]) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    rdmacoll.init()
except rdmacoll.ConfigError as error:
    print(f"refused: {error}", flush=True)
    sys.exit(3)
total = rdmacoll.engine.allreduce(np.full(1_000_000, rdmacoll.rank() + 1.0), op=rdmacoll.Sum)
print(f"sum {total[0]} {total[-1]}", flush=True)
"""


def test_a_limit_on_threads_is_named_on_every_rank(tmp_path):
    tmp_path.chmod(0o777)
    tmp_path.parent.chmod(0o711)
    tmp_path.parent.parent.chmod(0o711)
    env = {"AS_NOBODY": "1", "THREADS": "1", "RDMACOLL_SECRET_FILE": str(tmp_path / "secret")}
    outcome = run(LIMITED, 2, env=env, deadline_s=60)
    assert [rank.code for rank in outcome.ranks] == [3, 3], outcome.text()
    for rank in outcome.ranks:
        assert "may have 1 processes and threads (RLIMIT_NPROC" in rank.output, outcome.text()
        assert "ulimit -u" in rank.output
        assert "terminate called" not in rank.output


def test_with_little_address_space_the_pool_becomes_smaller_and_says_so():
    outcome = run(LIMITED, 2, env={"ADDRESS_MIB": "1200"}, deadline_s=60)
    assert [rank.code for rank in outcome.ranks] == [0, 0], outcome.text()
    for rank in outcome.ranks:
        assert "sum 3.0 3.0" in rank.output
        assert "MiB instead of 1 GiB" in rank.output, outcome.text()
        assert "RLIMIT_AS" in rank.output


def test_one_rank_with_little_address_space_makes_all_pools_smaller():
    program = LIMITED.replace('if os.environ.get("ADDRESS_MIB"):', 'if os.environ["RDMACOLL_RANK"] == "1":')
    outcome = run(program, 2, env={"ADDRESS_MIB": "1200"}, deadline_s=60)
    assert [rank.code for rank in outcome.ranks] == [0, 0], outcome.text()
    assert "instead of 1 GiB" in outcome.ranks[1].output
    assert all("sum 3.0 3.0" in rank.output for rank in outcome.ranks)


@pytest.mark.parametrize(
    ("pool", "left", "words"),
    [
        ("1G", "1200", "RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE) asks for 1 GiB"),
        ("512M", "1200", "the buffer pools of the 1 other ranks of this node (512 MiB each, mapped twice)"),
    ],
)
def test_a_pool_that_was_asked_for_and_does_not_fit_is_refused_alike_everywhere(pool, left, words):
    outcome = run(LIMITED, 2, env={"ADDRESS_MIB": left, "RDMACOLL_BUF_SIZE": pool}, deadline_s=60)
    assert [rank.code for rank in outcome.ranks] == [3, 3], outcome.text()
    for rank in outcome.ranks:
        assert words in rank.output, outcome.text()
        assert "RLIMIT_AS is" in rank.output
        assert "Lower RDMACOLL_BUF_SIZE" in rank.output
        assert "stopped answering" not in rank.output
