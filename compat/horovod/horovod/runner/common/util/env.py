"""The world of a process by its launcher's variables."""

from __future__ import annotations

import os

_VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size, or (0, 1) without a launcher."""
    for rank, size in _VARIABLES:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1
