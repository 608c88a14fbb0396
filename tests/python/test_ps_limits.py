"""Memory of asynchronous parameter servers, and refusals of servers and workers."""

from __future__ import annotations

from pathlib import Path

from ranks import Run, run

DECLARING = """
import time
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False)
w = np.zeros((256, %d), np.float32)
ps.declare({"w": w}, ps.Rule("optimizer=%s\\ninitial_learning_rate=0.1\\n"), by_rows=["w"])
ps.push(w, "w")
ps.push_rows(np.arange(256), w, "w")
ps.pull_rows(np.arange(256), "w")
report(ps.stats()[0]["stored_bytes"])
time.sleep(1000)
"""


def test_a_server_holds_what_it_stores_and_never_more():
    def held(columns: int, optimizer: str) -> tuple[int, int, int]:
        """Returns the bytes that the server stores, its resident bytes, and its peak of resident bytes."""
        with Run(DECLARING % (columns, optimizer), 3, env={"RDMACOLL_TRANSPORT": "tcp"}) as started:
            started.wait_for_reports([0, 1])
            lines = Path(f"/proc/{started.pid(2)}/status").read_text().splitlines()
            stored = started.reported(0)
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
        return stored, kilobytes["VmRSS"] << 10, kilobytes["VmHWM"] << 10

    _, bare, _ = held(1, "sgd")
    for optimizer, copies in (("sgd", 1), ("adam", 3)):
        stored, now, most = held(1 << 16, optimizer)
        assert copies * (64 << 20) <= stored < copies * (64 << 20) + 4096
        assert stored < now
        # The server also holds a few chunks for each worker, but no further copy of the variable.
        assert most - bare - stored < 32 << 20, (optimizer, bare, stored, now, most)


def test_rows_are_integers_of_a_transfer_and_files_have_paths(tmp_path):
    program = """
import pathlib, sys
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False)
rule = ps.Rule("optimizer=sgd\\ninitial_learning_rate=1\\n")
words = np.arange(12, dtype=np.float32).reshape(4, 3)

def refusal(call, *arguments, **options):
    try:
        return call(*arguments, **options)
    except rdmacoll.ConfigError as error:
        return str(error)

broad = refusal(ps.declare, {"broad": np.zeros((2, 300_000), np.float32)}, rule, by_rows={"broad"})
misspelt = refusal(ps.declare, {"w": words}, ps.Rule("optimizer=sgd\\nlearning_rate=1\\n"))
ps.declare({"words": words}, rule, by_rows={"words"})
mask = refusal(ps.pull_rows, np.array([True, False]), "words")
halves = refusal(ps.push_rows, [1.5], np.ones((1, 3), np.float32), "words")
path = pathlib.Path(sys.argv[1]) / "saved"
ps.save(path)
ps.push_rows([3, 0], np.ones((2, 3), np.float32), "words")
ps.restore(path)
report([broad, misspelt, mask, halves, ps.pull_rows([], "words").shape,
        ps.pull_rows(np.array([3, 1], np.uint8), "words").tolist()])
"""
    reports = run(program, 2, arguments=[str(tmp_path)], deadline_s=60).succeeded()
    broad, misspelt, mask, halves, none, rows = reports[0]
    assert broad == (
        "a row of variable broad has 1200000 bytes, and a transfer of rows at most 1048568: make its "
        "rows shorter, or its gradient dense (declared without by_rows)."
    )
    assert "no setting of an optimizer called learning_rate: choose one of optimizer, " in misspelt
    assert mask == "rows of variable 'words' are bool: give their numbers, as integers."
    assert halves == "rows of variable 'words' are float64: give their numbers, as integers."
    assert none == [0, 3]
    assert rows == [[9, 10, 11], [3, 4, 5]]


def test_who_waits_for_the_first_values_hears_who_has_left_before():
    program = """
import numpy as np, rdmacoll
from ranks import report
from rdmacoll import ps
rdmacoll.init(mode="ps", sync=False)
try:
    ps.declare({"w": np.zeros(3)}, ps.Rule("optimizer=sgd\\n"),
               restore_from="/nowhere/saved" if rdmacoll.rank() == 0 else None)
except rdmacoll.RankFailedError as error:
    report([error.rank, str(error)])
except rdmacoll.ConfigError as error:
    report([-1, str(error)])
"""
    reports = run(program, 3, deadline_s=60).reports
    (mine, missing), (rank, said) = reports[:2]
    assert (mine, rank) == (-1, 0)
    assert "/nowhere/saved" in missing
    assert said.startswith("rank 0 has left before it gave variable w its initial values: ")
