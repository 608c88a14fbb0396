"""Names that programs import from `horovod.tensorflow.mpi_ops`."""

from __future__ import annotations

from typing import Any

import rdmacoll.tensorflow as _own
from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from rdmacoll._horovod.calls import operator_of as handle_average_backwards_compatibility
from rdmacoll.tensorflow import *  # noqa: F403

__all__ = ["check_num_rank_power_of_2", "handle_average_backwards_compatibility", *_own.__all__]


class _Basics:
    """The world, as Horovod's object for it: `rank()`, `size()` and the other functions are its methods."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_own, name)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return {number: list(one.ranks) for number, one in _own.process_sets().items()}


_basics = _Basics()
