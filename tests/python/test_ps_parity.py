"""Trainings with TensorFlow's own parameter servers and with rdmacoll's end with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow
from ranks import ROOT, free_port, run
from test_parameter_server import TOLERANCE, ps, train

WORKERS = 2


def by_tensorflow(kind: str, servers: int) -> Any:
    """The final weights."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(servers + WORKERS)]
    program: Path = ROOT / "tests" / "multiprocess" / "ps_tensorflow.py"
    processes = len(addresses) + (kind == "strategy")
    arguments = {number: [str(number), kind, str(servers), *addresses] for number in range(processes)}
    outcome = run(program, processes, launcher="hand", arguments_of=arguments, deadline_s=300)
    return outcome.succeeded()[-1]


# The order of sums differs, and TensorFlow's graph optimizer fuses what Keras computes one by one.
@pytest.mark.parametrize(
    ("kind", "servers"), [slow("sessions", 1), slow("strategy", 1), slow("sessions", 2), slow("strategy", 2)]
)
def test_a_training_ends_where_tensorflows_own_servers_end(kind, servers):
    theirs = np.array(by_tensorflow(kind, servers))
    for ours in train(WORKERS, WORKERS + servers, **ps(servers)):
        assert theirs.shape == np.shape(ours["weights"]["fit"])
        assert np.abs(theirs - ours["weights"]["fit"]).max() < TOLERANCE
