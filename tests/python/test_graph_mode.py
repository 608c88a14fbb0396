"""Keras 2 without eager execution (`tf.compat.v1.disable_eager_execution()`), on ranks with other data."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_tf_optimizers import tf_keras  # noqa: F401
from test_tf_ranks import run_checks
from test_tf_versions import old_python, run_in_old_python  # noqa: F401


def test_a_graph_of_keras_2_trains_as_one_process(tf_keras: Path) -> None:  # noqa: F811
    run_checks("tf_graph_mode.py", 2, arguments=[str(tf_keras)])


@pytest.mark.slow
def test_a_graph_of_keras_2_trains_so_in_tensorflow_2_15(old_python: Path) -> None:  # noqa: F811
    for done in run_in_old_python(old_python, "tf_graph_mode.py", 2, ""):
        assert len(done) > 4
