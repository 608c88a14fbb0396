"""Horovod's meaning on real ranks: world, process sets, collectives, gradients and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import slow
from test_tf_optimizers import path_of, tf_keras as tf_keras
from test_tf_ranks import run_checks
from test_tf_versions import old_python as old_python, run_in_old_python


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3)])
def test_collectives_have_horovods_meaning(ranks: int) -> None:
    run_checks("tf_horovod.py", ranks)


@pytest.mark.parametrize(
    ("ranks", "launcher"), [slow(1, "tcp"), (2, "mpirun"), slow(3, "tcp"), slow(3, "mpirun")]
)
def test_worlds_and_process_sets_have_horovods_meaning(ranks: int, launcher: str) -> None:
    run_checks("tf_horovod_world.py", ranks, launcher=launcher, arguments=[launcher])


@pytest.mark.parametrize("ranks", [1, slow(2), 3, slow(4)])
def test_collectives_are_right_for_each_operator_dtype_shape_and_set(ranks: int) -> None:
    # Soon in plan mode, since the errors of known operations are tested, too.
    run_checks("tf_horovod_matrix.py", ranks, env={"RDMACOLL_PLAN_REPEATS": "2"})


@pytest.mark.parametrize(("ranks", "form"), [slow(1, "pickle"), (3, "pickle"), slow(2, "json")])
def test_objects_come_signed_to_every_rank(ranks: int, form: str) -> None:
    run_checks("objects.py", ranks, arguments=[form], env={"RDMACOLL_OBJECTS": form})


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3)])
def test_trainings_take_horovods_arguments(ranks: int) -> None:
    run_checks("tf_horovod_training.py", ranks)


@pytest.mark.parametrize("ranks", [slow(1), 2])
def test_helpers_of_several_passes_are_horovods(ranks: int) -> None:
    run_checks("tf_horovod_aggregation.py", ranks)


@pytest.mark.parametrize("ranks", [slow(1), 2])
def test_elastic_states_are_equal_in_a_world_that_stays(ranks: int) -> None:
    run_checks("tf_horovod_states.py", ranks)


@pytest.mark.parametrize("ranks", [2, slow(3)])
def test_batches_of_all_ranks_are_normalized_as_one(ranks: int) -> None:
    run_checks("tf_sync_batch_norm.py", ranks)


@pytest.mark.parametrize("ranks", [slow(2), slow(3)])
def test_batches_are_normalized_as_one_in_keras_2(tf_keras: Path, ranks: int) -> None:
    env = {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": path_of(tf_keras)}
    run_checks("tf_sync_batch_norm.py", ranks, env=env)


@pytest.mark.slow
def test_batches_are_normalized_as_one_in_tensorflow_2_15(old_python: Path) -> None:
    for done in run_in_old_python(old_python, "tf_sync_batch_norm.py", 2):
        assert len(done) == 11


@pytest.mark.parametrize(("ranks", "more"), [slow(1, ()), (2, ()), slow(3, ("all",))])
def test_local_variables_and_passes_train_as_in_one_process(
    tf_keras: Path, ranks: int, more: tuple[str, ...]
) -> None:
    run_checks("tf_horovod_optimizers.py", ranks, arguments=[str(tf_keras), *more])


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3)])
def test_ranks_may_hold_different_parts_of_a_model(tf_keras: Path, ranks: int) -> None:
    run_checks("tf_horovod_parts.py", ranks, arguments=[str(tf_keras)])


@pytest.mark.slow
def test_ranks_may_hold_different_parts_in_tensorflow_2_15(old_python: Path) -> None:
    for program in ("tf_horovod_parts.py", "tf_own_reductions.py"):
        for done in run_in_old_python(old_python, program, 2, ""):
            assert len(done) > 6


@pytest.mark.slow
def test_local_variables_and_passes_train_in_tensorflow_2_15(old_python: Path) -> None:
    for done in run_in_old_python(old_python, "tf_horovod_optimizers.py", 2, ""):
        assert len(done) > 10


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3)])
def test_loss_scaling_leaves_steps_out_on_all_ranks_and_residuals_alone(tf_keras: Path, ranks: int) -> None:
    run_checks("tf_horovod_loss_scaling.py", ranks, arguments=[str(tf_keras)])


@pytest.mark.slow
def test_loss_scaling_does_so_in_tensorflow_2_15(old_python: Path) -> None:
    for done in run_in_old_python(old_python, "tf_horovod_loss_scaling.py", 2, ""):
        assert len(done) == 7


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3), slow(4)])
def test_tapes_and_updates_are_combined_by_adasum(ranks: int) -> None:
    run_checks("tf_horovod_adasum.py", ranks)
