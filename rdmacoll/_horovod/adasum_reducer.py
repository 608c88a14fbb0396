"""Reduces gradients by Adasum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._horovod.adasum import combined
from rdmacoll._horovod.errors import UnsupportedError
from rdmacoll._horovod.reducer import HorovodReducer
from rdmacoll.operators import Sum


class AdasumReducer(HorovodReducer):
    """Combines the gradients of a tape by Adasum. The buckets carry an agreement about the list, and no
    values."""

    op_name = "Adasum"

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "op": Sum})

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        if self.sparse_as_dense is not True and any(isinstance(one, tf.IndexedSlices) for one in gradients):
            raise UnsupportedError("op=Adasum cannot add tf.IndexedSlices: give sparse_as_dense=True.")
        return super()._reduced(gradients, variables)

    def _reduce_dense(
        self, gradients: list[Any], indices: list[int], labels: list[str], name: str, checked: str = ""
    ) -> list[Any]:
        agreed = super()._reduce_dense(gradients, [], labels, name, checked)
        if not indices:
            return agreed
        values = [gradients[index] for index in indices]
        factor = self.prescale_factor
        with tf.control_dependencies(agreed):
            sent, factor = self.compression.packed(values, factor)
            found = combined(sent, (factor, self.postscale_factor), f"{name}/adasum")
        for index, result in zip(indices, self.compression.unpacked(found, values)):
            gradients[index] = result
        return agreed
