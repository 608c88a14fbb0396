"""The test of paths between ranks, on RDMA devices."""

from __future__ import annotations

import pytest

from rdma.conftest import REAL_DEVICES, SceneRunner

pytestmark = pytest.mark.rdma


def test_paths_are_measured_over_rdma_and_tcp(run_scene: SceneRunner) -> None:
    run_scene(
        "scene_paths",
        "check_two_ranks_have_a_path_over_rdma_and_one_over_tcp",
        "check_bench_pair_measures_over_rdma",
        timeout_s=300,
    )


# tests/python/test_paths.py tests these findings with recorded facts.
@pytest.mark.slow
def test_a_cut_that_is_set_is_shown(run_scene: SceneRunner) -> None:
    run_scene("scene_paths", "check_a_cut_that_is_set_is_shown_beside_the_measured_one", timeout_s=200)


# Only the guest's network can be broken.
if not REAL_DEVICES:

    def test_a_broken_path_is_named_and_spoils_no_other(run_scene: SceneRunner) -> None:
        run_scene(
            "scene_paths",
            "check_a_single_path_that_fails_is_named_and_the_others_have_numbers",
            "check_a_wrong_gid_is_named_with_the_right_one",
            "check_a_missing_route_is_called_that",
            timeout_s=400,
            hosts=3,
        )

    @pytest.mark.slow
    def test_a_slow_link_is_named(run_scene: SceneRunner) -> None:
        run_scene("scene_paths", "check_a_slow_link_is_named_with_both_values", timeout_s=300, hosts=3)
