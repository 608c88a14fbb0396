"""The result arrays of an exchange, and the learning rate that a push may bring."""

from __future__ import annotations

from ranks import run

PROGRAM = """
import numpy as np
import rdmacoll
from ranks import report
from rdmacoll import ps

rule = ps.Rule("optimizer=sgd\\nschedule=constant\\ninitial_learning_rate=0.5\\n")
rdmacoll.init(mode="ps", sync=False, num_servers=2)
ps.declare({"small": np.zeros(10, np.float32), "large": np.zeros((300, 1000), np.float32)}, rule)
gradients = {"small": np.full(10, 2, np.float32), "large": np.full((300, 1000), -2, np.float32)}
place = np.empty((300, 1000), np.float32)
frozen = np.empty(10, np.float32)
frozen.flags.writeable = False

refused = []
for out in (
    {"other": place},
    {"small": gradients["small"]},
    {"small": gradients["large"].ravel()[5:15]},
    {"small": np.zeros(3, np.float32)},
    {"small": np.zeros(10)},
    {"small": frozen},
    {"large": place.T},
):
    try:
        ps.exchange(gradients, out)
    except rdmacoll.ConfigError as error:
        refused.append(str(error))
values = ps.exchange(gradients, {"large": place})
report({
    "refused": refused,
    "is_there": values["large"] is place,
    "values": [float(values["small"][3]), float(place[299, 999]), float(place.min()), float(place.max())],
})
rdmacoll.shutdown()
"""


RATES = """
import numpy as np
import rdmacoll
from ranks import report
from rdmacoll import ps

rdmacoll.init(mode="ps", sync=False, num_servers=2)
rule = ps.Rule("optimizer=sgd\\ninitial_learning_rate=0.5\\n")
ps.declare({"w": np.zeros((40, 3), np.float32)}, rule, by_rows=["w"])
ps.declare({"v": np.zeros(9)}, ps.Rule("optimizer=adam\\nschedule=pushed\\n"))
ones, told = np.ones((40, 3), np.float32), []
if rdmacoll.rank() == 0:
    for rate in (None, 0.25, 0, -2.0):
        ps.push(ones, "w", learning_rate=rate)
        told.append(float(ps.pull("w")[39, 2]))
    told.append(float(ps.exchange({"w": ones}, learning_rate=1)["w"][0, 0]))
    ps.push_rows([7, 39], ones[:2], "w", learning_rate=4)
    told += [float(one) for one in ps.pull("w")[[0, 7, 39], 1]]
    for arguments in ({}, {"learning_rate": "x"}, {"learning_rate": 0.5}):
        try:
            ps.push(np.ones(9), "v", **arguments)
        except rdmacoll.ConfigError as error:
            told.append(str(error))
    told.append(round(float(ps.pull("v")[8]), 4))
report(told)
rdmacoll.shutdown()
"""


def test_a_push_brings_its_learning_rate_or_goes_by_that_of_its_optimizer() -> None:
    reported = run(RATES, 4, deadline_s=60).succeeded()[0]
    assert reported[:5] == [-0.5, -0.75, -0.75, 1.25, 0.25]
    assert reported[5:8] == [0.25, -3.75, -3.75]
    assert "variable v goes by the learning rate that comes with each push" in reported[8]
    assert reported[9] == "learning_rate='x' of a push: give a number."
    assert reported[10:] == [-0.5]


def test_values_come_into_arrays_that_are_given_or_into_new_ones() -> None:
    found = run(PROGRAM, 3, deadline_s=60).succeeded()[0]
    wanted = ["out names other", "memory with a gradient", "memory with a gradient", "out has shape [3]"]
    wanted += [
        "out is float64",
        "give a contiguous, writable array of shape [10]",
        "out has shape [1000, 300]",
    ]
    assert len(found["refused"]) == len(wanted), found
    for text, part in zip(found["refused"], wanted):
        assert part in text
    assert found["is_there"]
    assert found["values"] == [-1, 1, 1, 1], "what was refused has pushed nothing"
