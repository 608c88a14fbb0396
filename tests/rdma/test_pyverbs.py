"""Compares our view of the devices with that of rdma-core's pyverbs, and breaks queue pairs with pyverbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdma import pyverbs_package
from rdma.cache import GuestError
from rdma.conftest import REAL_DEVICES, SceneRunner

pytestmark = pytest.mark.rdma


@pytest.fixture(scope="module")
def pyverbs() -> Path:
    """Returns the folder of pyverbs. A machine with real devices may run another system than Debian."""
    try:
        return pyverbs_package.folder()
    except GuestError as error:
        if REAL_DEVICES:
            pytest.skip(f"needs Debian's pyverbs: {error}")
        raise


def test_the_engine_the_kernel_and_pyverbs_agree(run_scene: SceneRunner, pyverbs: Path) -> None:
    run_scene("scene_pyverbs", "check_the_engine_sysfs_and_pyverbs_agree", modules=pyverbs)


# Only the guest's queue pairs may be broken.
if not REAL_DEVICES:

    def test_a_queue_pair_that_is_broken_is_named(run_scene: SceneRunner, pyverbs: Path) -> None:
        run_scene(
            "scene_pyverbs",
            "check_a_queue_pair_broken_by_a_stray_write_is_named_with_its_status",
            "check_a_queue_pair_that_was_only_flushed_is_named_too",
            modules=pyverbs,
        )
