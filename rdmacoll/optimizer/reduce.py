"""Reduces a list of gradients: one grouped op for each bucket, sparse ones one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from rdmacoll._abi.arguments import scale
from rdmacoll._world import places, world
from rdmacoll.errors import ConfigError
from rdmacoll.operators import ReduceOp
from rdmacoll.ops._arguments import reduction, sparse_as_dense as checked_sparse_as_dense
from rdmacoll.ops._labels import label_of, listing, path_of
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._names import name_in_trace
from rdmacoll.ops._op_calls import reduce_group
from rdmacoll.ops._process_sets import in_process_set
from rdmacoll.ops.compression import LossyCompressor, compressor
from rdmacoll.ops.sparse import reduce_slices
from rdmacoll.optimizer import registry, residuals
from rdmacoll.optimizer.accumulation import Accumulation, checked_passes
from rdmacoll.optimizer.buckets import Bucket, Entry, checked_bucket_bytes, cut, entry_of, manifest
from rdmacoll.optimizer.model_names import own_name
from rdmacoll.process_set import ProcessSet, global_process_set, number_of
from rdmacoll.ps.calls import has_servers

# (the reducer's name, variables, the reducer) -> the name by which ranks match operations.
Naming = Callable[[str, Sequence[Any], Any], str]


def refuse_servers() -> None:
    """Raises ConfigError with asynchronous parameter servers, which reduce nothing."""
    if has_servers():
        raise ConfigError(
            "gradients are not reduced with asynchronous parameter servers, which apply those of each "
            "worker: take them from a plain tf.GradientTape, and give them to an optimizer that "
            "DistributedOptimizer has wrapped after init(), or push them with "
            "rdmacoll.push_pull(gradient, name=...) to variables of rdmacoll.ps.declare."
        )


class GradientReducer:
    """Reduces the gradients of one step when it is called. Keys are indices: `name`, the step's place in
    the trace and the bucket's number. The variables' names only label messages."""

    is_of_tape = False
    counts_passes = False  # whether optimizers of Keras 2 and TensorFlow 1 count passes instead of updates

    def __init__(
        self,
        *,
        name: str,
        op: int = ReduceOp.AVERAGE,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: Any = None,
        sparse_as_dense: bool | str = False,
        bucket_bytes: int | None = None,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = global_process_set,
        naming: Naming = own_name,
    ) -> None:
        """naming: distinguishes models with the same `name`."""
        number = number_of(world.current(), process_set) if process_set is not global_process_set else 0
        self.name = name if number == 0 else f"{name}_of_process_set_{number}"
        self.naming = naming
        self.process_set = process_set
        self.op = reduction(op)
        self.prescale_factor = scale(prescale_factor, "prescale_factor")
        self.postscale_factor = scale(postscale_factor, "postscale_factor")
        self.compression = compressor(compression, may_be_lossy=True)
        self.lossy = self.compression if isinstance(self.compression, LossyCompressor) else None
        if self.lossy is not None:
            residuals.check(self.lossy, self.op_name)
        self.sparse_as_dense = checked_sparse_as_dense(sparse_as_dense)
        self.bucket_bytes = checked_bucket_bytes(bucket_bytes)
        self.backward_passes_per_step = checked_passes(backward_passes_per_step)
        self.average_aggregated_gradients = average_aggregated_gradients
        self.loss_scale: Any = 1.0  # the factor of the loss, while loss scaling reduces its gradients
        self.sums_means_of = 1  # passes, if the optimizer's own accumulation has taken their mean
        self.buckets: list[Bucket] = []  # those of the last list that was reduced

    @property
    def reads_loss_scale(self) -> bool:
        """Whether `loss_scale` has to be known while gradients are computed."""
        return self.lossy is not None

    def options(self) -> dict[str, Any]:
        """The arguments that create a reducer like this one."""
        names = ["name", "op", "prescale_factor", "postscale_factor", "sparse_as_dense", "bucket_bytes"]
        names += ["backward_passes_per_step", "average_aggregated_gradients", "compression", "process_set"]
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def family_of(optimizer: Any) -> Any:
        """The module that wraps this optimizer; None for that of its library."""
        return None

    def methods(self, plain: type) -> dict[str, Any]:
        """Further attributes of the class of a wrapped optimizer, whose own class is `plain`."""
        return {}

    @property
    def op_name(self) -> str:
        """The operator, for messages."""
        return ReduceOp(self.op).name.capitalize()

    def keeps(self, variable: Any) -> bool:
        """Whether the gradient of this variable stays this rank's own."""
        return registry.is_kept_by_tape(variable)

    def check_clipping(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Like the function `check_clipping`."""
        if getattr(optimizer, "global_clipnorm", None) is not None:
            check_clipping(optimizer, [self.keeps(variable) for variable in variables], self.process_set)

    def accumulation(self) -> Accumulation | None:
        """An accumulation for an optimizer that has none of its own; None if each pass is a step."""
        if self.backward_passes_per_step == 1:
            return None
        return Accumulation(self.backward_passes_per_step, is_mean=self.average_aggregated_gradients)

    def name_for(self, variables: Sequence[Any]) -> str:
        """The name by which ranks match the operations for these variables. Raises ConfigError if two
        threads use one name."""
        return self.naming(self.name, variables, self)

    @not_converted
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """The reduced gradients; None stays None."""
        refuse_servers()
        registry.note_reduction(self, variables or ())
        with in_process_set(self.process_set):
            return self._reduced(gradients, variables)

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        result = list(gradients)
        present = [index for index, gradient in enumerate(result) if gradient is not None]
        labels = _labels(len(result), variables)
        dense, sparse, overwriting = [], [], []
        for index in present:
            if variables is not None and is_overwritten(variables[index]):
                overwriting.append(index)
            elif isinstance(result[index], tf.IndexedSlices) and self.sparse_as_dense is not True:
                sparse.append(index)
            else:
                result[index] = tf.convert_to_tensor(result[index])
                dense.append(index)
        prefix = name_in_trace(self.name_for(result if variables is None else variables))
        entries = {index: self._entry(result[index]) for index in dense}
        self.buckets = cut(list(entries.values()), bucket_bytes=self._bucket_bytes())
        parts = [[dense[position] for position in bucket.indices] for bucket in self.buckets]
        rows = {index: self._entry_of_slices(result[index]) for index in sparse}
        checked = manifest(len(result), entries, rows, self.buckets)
        if names := listing([label_of(variable) for variable in variables or ()]):
            checked += "\n" + names
        if self.lossy is not None:
            parts, checked = [], f"{self.compression!r} of {checked}"
        first, *others = parts or [[]]
        agreed = self._reduce_dense(result, first, labels, f"{prefix}/bucket_0", checked)
        # The other operations depend on the list. Before all ranks agree on it, they could wait for ranks
        # without such operations, and the step would wait for them.
        with tf.control_dependencies(agreed):
            for number, part in enumerate(others, 1):
                self._reduce_dense(result, part, labels, f"{prefix}/bucket_{number}")
            if self.lossy is not None and dense:
                self._reduce_incompletely(self.lossy, result, dense, variables, f"{prefix}/messages")
            for index in sparse:
                result[index] = self._reduce_sparse(result[index], f"{prefix}/{index}", labels[index])
            for index in overwriting:
                # Keras takes the maximum of several passes, too.
                (result[index],) = reduce_group(
                    [tf.convert_to_tensor(result[index])],
                    op=ReduceOp.MAX,
                    name=f"{prefix}/{index}",
                    labels=[labels[index]],
                )
        return result

    def _reduce_dense(
        self, gradients: list[Any], indices: list[int], labels: list[str], name: str, checked: str = ""
    ) -> list[Any]:
        """Reduces in place. An empty bucket is submitted as well, since ranks need an operation to compare
        `checked`."""
        reduced = reduce_group(
            [gradients[index] for index in indices] or [tf.zeros((0,))],
            op=self.op,
            name=name,
            prescale_factor=self.prescale_factor,
            postscale_factor=self.postscale_factor * self.sums_means_of,
            compression=self.compression,
            labels=[labels[index] for index in indices],
            manifest=checked,
        )
        for index, gradient in zip(indices, reduced):
            gradients[index] = gradient
        return reduced

    def _reduce_incompletely(
        self,
        compression: LossyCompressor,
        gradients: list[Any],
        indices: list[int],
        variables: Sequence[Any] | None,
        name: str,
    ) -> None:
        """Reduces in place, by messages that leave parts of the gradients to later ones."""
        reduced = residuals.reduced(
            compression,
            [gradients[index] for index in indices],
            [None if variables is None else variables[index] for index in indices],
            op=self.op,
            factors=(self.prescale_factor, self.postscale_factor * self.sums_means_of),
            name=name,
            loss_scale=self.loss_scale,
        )
        for index, gradient in zip(indices, reduced):
            gradients[index] = gradient

    def _reduce_sparse(self, slices: Any, name: str, label: str) -> Any:
        return reduce_slices(
            slices,
            op=self.op,
            name=name,
            prescale_factor=self.prescale_factor,
            postscale_factor=self.postscale_factor * self.sums_means_of,
            compression=self.compression,
            label=label,
            may_sum=self.sparse_as_dense == "auto",
        )

    def _entry(self, tensor: Any) -> Entry:
        return entry_of(tensor, self.compression.wire_dtype(tensor.dtype))

    def _entry_of_slices(self, slices: Any) -> Entry:
        """The entry of slices, without the number of rows, which may differ between ranks."""
        values = self._entry(slices.values)
        return Entry(values.dtype, values.shape[1:], None)

    def _bucket_bytes(self) -> int:
        if self.bucket_bytes is not None:
            return self.bucket_bytes
        return int(world.current().values.number("RDMACOLL_BUCKET_BYTES"))


def check_clipping(optimizer: Any, are_kept: Sequence[bool], process_set: ProcessSet) -> None:
    """Raises ConfigError if the optimizer clips by the norm of all gradients, and some stay this rank's own:
    each rank would scale the shared ones by another norm. are_kept: which ones stay."""
    limit = getattr(optimizer, "global_clipnorm", None)
    differs = any(are_kept) and not all(are_kept)
    if limit is not None and differs and places.may_have_peers(process_set):
        raise ConfigError(
            f"global_clipnorm={limit:g} of an optimizer with local variables: their gradients differ between "
            "ranks, so each rank would clip by another norm. Give clipnorm or clipvalue, or an optimizer of "
            "their own to the local variables."
        )


def is_overwritten(variable: Any) -> bool:
    """Whether the gradient of this variable is its next value, as for the scales of float8 in Keras 3."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _labels(count: int, variables: Sequence[Any] | None) -> list[str]:
    if variables is None or len(variables) != count:
        return [f"gradient {index}" for index in range(count)]
    return [path_of(variable) for variable in variables]
