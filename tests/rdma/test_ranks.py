"""Tests whole ranks over RDMA: sums, requests, faults, a training. The scenes are beside this file.

Checks that share a guest are in one test, since the guest's start and TensorFlow's import take most time.
"""

from __future__ import annotations

import pytest
from cuda_sim_build import fake_driver

from rdma.conftest import REAL_DEVICES, SceneRunner

pytestmark = pytest.mark.rdma


def test_all_collectives_of_two_ranks_equal_numpy(run_scene: SceneRunner) -> None:
    run_scene("scene_ranks", "check_two_ranks", timeout_s=360)


def test_memory_of_prepared_calls_is_reached_where_it_lies(run_scene: SceneRunner) -> None:
    run_scene("scene_ranks", "check_prepared_memory_is_not_copied", timeout_s=120)


def test_arrays_in_memory_of_gpus_are_staged(run_scene: SceneRunner) -> None:
    fake_driver()  # a guest compiles slowly
    run_scene(
        "scene_gpu",
        "check_arrays_of_gpus_are_staged",
        "check_every_kind_of_collective",
        "check_the_direct_way_that_is_off_loses_nothing",
        "check_a_forced_way_is_an_error_with_its_reason",
        timeout_s=400,
    )


@pytest.mark.slow
def test_all_collectives_of_arrays_in_memory_of_gpus_equal_numpy(run_scene: SceneRunner) -> None:
    fake_driver()
    run_scene("scene_gpu", "check_all_dtypes_and_operators", timeout_s=360)


def test_a_small_pool_serves_large_tensors(run_scene: SceneRunner) -> None:
    run_scene(
        "scene_ranks", "check_a_tensor_larger_than_the_pool_goes_in_pieces_and_it_is_said_once", timeout_s=200
    )


def test_devices_are_used_as_chosen_and_named(run_scene: SceneRunner) -> None:
    run_scene(
        "scene_ranks",
        "check_under_mpirun_each_local_rank_on_its_device",
        "check_rank_0_says_once_what_was_chosen",
        "check_automatic_choice",
        "check_two_rails_share_the_bytes",
        timeout_s=360,
    )


def test_parameter_servers_sum(run_scene: SceneRunner) -> None:
    run_scene("scene_ranks", "check_parameter_servers_sum_over_rdma", timeout_s=300, hosts=4)


@pytest.mark.slow
def test_asynchronous_parameter_servers_train(run_scene: SceneRunner) -> None:
    run_scene(
        "scene_ranks",
        "check_asynchronous_servers_train_over_rdma",
        "check_asynchronous_servers_go_on_without_a_worker_over_rdma",
        timeout_s=500,
        hosts=4,
    )


def test_requests_are_heeded_and_who_cannot_is_named(run_scene: SceneRunner) -> None:
    run_scene("scene_requests", timeout_s=300)


def test_a_lost_rank_is_named(run_scene: SceneRunner) -> None:
    run_scene(
        "scene_faults",
        "check_a_killed_rank_is_named_by_every_survivor",
        "check_a_stopped_rank_is_named_once_its_heartbeats_are_missed",
        timeout_s=300,
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["three", "four"])
def test_more_ranks_sum_in_canonical_order(ranks: str, run_scene: SceneRunner) -> None:
    run_scene("scene_ranks", f"check_{ranks}_ranks_in_canonical_order", timeout_s=600, hosts=4)


@pytest.mark.slow
def test_process_sets_and_uneven_data(run_scene: SceneRunner) -> None:
    run_scene(
        "scene_ranks",
        "check_process_sets_that_overlap",
        "check_ranks_that_join",
        timeout_s=600,
        hosts=4,
    )


@pytest.mark.slow
def test_selftest_passes_over_rdma(run_scene: SceneRunner) -> None:
    run_scene("scene_ranks", "check_selftest", timeout_s=360)


@pytest.mark.slow
def test_a_training_gives_the_weights_that_tcp_gives(run_scene: SceneRunner) -> None:
    run_scene("scene_keras", timeout_s=400, memory="6G")


# Only the guest's cables can be pulled.
if not REAL_DEVICES:

    @pytest.mark.slow
    def test_cables_that_are_pulled_and_packets_that_are_lost(run_scene: SceneRunner) -> None:
        run_scene(
            "scene_faults",
            "check_a_cable_that_comes_back_at_once_heals",
            "check_a_cable_that_stays_pulled_is_an_error_with_status_and_path",
            "check_sums_are_right_though_packets_are_lost",
            "check_a_device_that_is_taken_away_is_named_at_both_ends",
            timeout_s=400,
        )
