"""A training by TensorFlow's own parameter servers ends with the weights that ours end with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow
from ranks import ROOT, free_port, run
from test_parameter_server import TOLERANCE, ps, train

WORKERS = 2


def by_tensorflow(kind: str) -> Any:
    """The final weights."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(1 + WORKERS)]
    program: Path = ROOT / "tests" / "multiprocess" / "ps_tensorflow.py"
    processes = len(addresses) + 1
    arguments = {number: [str(number), kind, *addresses] for number in range(processes)}
    outcome = run(program, processes, launcher="hand", arguments_of=arguments, deadline_s=300)
    return outcome.succeeded()[-1]


# The order of sums differs, and TensorFlow's graph optimizer fuses what Keras computes one by one.
@pytest.mark.parametrize("kind", [slow("graph"), slow("strategy")])
def test_a_training_ends_where_tensorflows_own_servers_end(kind):
    theirs = np.array(by_tensorflow(kind))
    for ours in train(WORKERS, WORKERS + 1, **ps(1)):
        assert theirs.shape == np.shape(ours["weights"]["fit"])
        assert np.abs(theirs - ours["weights"]["fit"]).max() < TOLERANCE
