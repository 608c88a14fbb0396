"""Memory of the engine as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


class Block:
    """Memory as numpy takes it. An array over it keeps this object as its base, and so the memory's owner."""

    def __init__(self, owner: object, address: int, size: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def array_over(block: Block, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array whose bytes are the block's."""
    return np.asarray(block).view(dtype).reshape(shape)
