"""Arrays beyond 2^31 bytes, and what a signal prints."""

from __future__ import annotations

import pytest
from ranks import run


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_more_than_two_to_the_31_bytes_are_summed_and_moved(transport):
    program = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
rank = rdmacoll.rank()
count = 2**31 + 4099
values = np.full(count, rank + 1, np.uint8)
values[-1] = 40 + rank
rdmacoll.engine.allreduce(values, rdmacoll.Sum, out=values)
assert values[0] == values[count // 2] == 3 and values[-1] == 81
assert int(values.max()) == 81 and int(values[:-1].max()) == int(values[:-1].min()) == 3
values[:] = rank
rdmacoll.engine.broadcast(values, 1, out=values)
assert int(values.min()) == 1
del values
# Of zeros that are never written, so that they take no memory; marks at the ends.
mine = np.zeros(2**30 + 11 * rank, np.uint8)
mine[0], mine[-1] = 10 + rank, 20 + rank
whole = rdmacoll.engine.allgather(mine)
assert whole.shape == (2**31 + 11,)
assert [int(whole[i]) for i in (0, 2**30 - 1, 2**30, -1)] == [10, 20, 11, 21]
assert int(np.count_nonzero(whole)) == 4
report("done")
rdmacoll.shutdown()
"""
    outcome = run(program, 2, env={"RDMACOLL_TRANSPORT": transport}, deadline_s=600)
    assert outcome.succeeded() == ["done"] * 2


# Over TCP, and with two ranks, segments are small. The smallest pool therefore suffices.
@pytest.mark.parametrize(("transport", "ranks", "told"), [("shm", 4, 1), ("shm", 2, 0), ("tcp", 2, 0)])
def test_a_tensor_larger_than_the_pool_goes_in_pieces_and_it_is_said_once(transport, ranks, told):
    program = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
count, rank, size = 10_000_000, rdmacoll.rank(), rdmacoll.size()
for turn in range(2):
    values = np.arange(count, dtype=np.float64) * (rank + 1)
    rdmacoll.engine.allreduce(values, rdmacoll.Sum, out=values)
    assert (values[:: 1001] == np.arange(count)[:: 1001] * (size * (size + 1) / 2)).all()
report("done")
rdmacoll.shutdown()
"""
    env = {"RDMACOLL_TRANSPORT": transport, "TF_RDMA_BUF_SIZE": "16M"}
    outcome = run(program, ranks, env=env, deadline_s=120)
    assert outcome.succeeded() == ["done"] * ranks
    assert outcome.ranks[0].output.count("Raise RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE)") == told


def test_sigusr1_prints_what_a_rank_waits_for():
    program = """
import os, signal, time
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
if rdmacoll.rank() == 0:
    handle = rdmacoll.engine.allreduce_async(np.ones(4), name="lonely")
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.5)
    rdmacoll.engine.barrier()
elif rdmacoll.rank() == 1:
    handle = rdmacoll.engine.allreduce_async(np.ones(4), name="lonely")
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.5)
    rdmacoll.engine.barrier()
else:
    rdmacoll.engine.barrier()
    handle = rdmacoll.engine.allreduce_async(np.ones(4), name="lonely")
assert handle.wait()[0] == 1
report("went on")
rdmacoll.shutdown()
"""
    outcome = run(program, 3, deadline_s=60)
    assert outcome.succeeded() == ["went on"] * 3
    said = outcome.ranks[0].output
    assert "allreduce 'lonely' waits for its decision" in said, said
    assert "2 of 3 ranks have submitted it; missing: rank 2 (" in said, said
    # Only the root knows which ranks are missing.
    assert ") knows which ranks are missing: send SIGUSR1 to" in outcome.ranks[1].output, outcome.text()


def test_time_that_late_ranks_take_is_counted_apart():
    program = """
import os, time
from pathlib import Path
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
values = np.ones(4)
for _ in range(100):  # by a plan in the end
    rdmacoll.engine.allreduce(values)
before = rdmacoll.metrics()
sign = Path(os.environ["RANKS_FOLDER"]) / "submitted"
if rdmacoll.rank() == 0:
    handle = rdmacoll.engine.allreduce_async(values)
    sign.touch()
else:
    while not sign.exists():
        time.sleep(0.01)
    time.sleep(0.5)
    handle = rdmacoll.engine.allreduce_async(values)
handle.wait()
after = rdmacoll.metrics()
names = "communication_s", "communication_waiting_s", "communication_moving_s"
report([after[name] - before[name] for name in names])
rdmacoll.shutdown()
"""
    (total, waiting, moving), _ = run(program, 2, deadline_s=60).succeeded()
    assert waiting >= 0.49, (total, waiting, moving)
    assert moving >= 0
    assert abs(total - waiting - moving) < 1e-6
