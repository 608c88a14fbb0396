"""Calls of ops that several collectives and gradients share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdmacoll.operators import OPERATOR_CODES, ReduceOp, check_reducible
from rdmacoll.ops._arguments import bits, check_movable, check_root, scales
from rdmacoll.ops._gradient_kind import gradient_attribute
from rdmacoll.ops._labels import listing
from rdmacoll.ops._library import must_run, op_scope, ops
from rdmacoll.ops._names import op_name
from rdmacoll.ops._process_sets import set_number
from rdmacoll.ops._typed_errors import typed_errors
from rdmacoll.ops.compression import Compression, Compressor


def reduce_group(
    tensors: Sequence[Any],
    *,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Compressor = Compression.none,
    labels: Sequence[str] = (),
    manifest: str = "",
    group: str = "",
) -> list[Any]:
    """One op for tensors that travel as one dtype. labels: the names of the tensors in messages. manifest:
    describes the list that begins with these tensors; it has to be equal on all ranks. group: the dtypes
    of the group, which have to be equal on all ranks, too."""
    check_reducible(compression.wire_dtype(tensors[0].dtype).name, op)
    return reductions_of(
        "rdmacoll_allreduce",
        tensors,
        op=op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        labels=list(labels),
        manifest=manifest,
        group=group,
    )


def reductions_of(
    function: str,
    tensors: Sequence[Any],
    *,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    compression: Compressor,
    **attributes: Any,
) -> list[Any]:
    """The results of an op that reduces tensors. function: its name in the library. attributes: those that
    not all such ops have."""
    prescale, postscale = scales(compression.wire_dtype(tensors[0].dtype), prescale_factor, postscale_factor)
    wire, prescale = compression.packed(tensors, prescale)
    call = getattr(ops(), function)
    with op_scope(), typed_errors():
        results = list(
            call(
                tensors=wire,
                op=OPERATOR_CODES[op],
                prescale_bits=bits(prescale),
                postscale_bits=bits(postscale),
                tensor_name=op_name(name),
                process_set=set_number(),
                **attributes,
                **gradient_attribute(),
            )
        )
    return compression.unpacked(must_run(results), tensors)


def allgather_one(tensor: Any, *, name: str | None, label: str = "") -> Any:
    """`allgather` of one tensor. label: its name in messages."""
    return allgather_group([tensor], name=name, labels=[label] if label else [])[0]


def allgather_group(
    tensors: Sequence[Any], *, name: str | None, labels: Sequence[str] = (), group: str = ""
) -> list[Any]:
    """One op for tensors of one dtype. group: all dtypes of the group, if this is its first op."""
    check_movable(tensors[0].dtype)
    functions = ops()
    with op_scope(), typed_errors():
        gathered = functions.rdmacoll_allgather(
            tensors=tensors,
            tensor_name=op_name(name),
            process_set=set_number(),
            labels=list(labels),
            group=group,
            **gradient_attribute(),
        )
    return must_run(list(gathered))


def send_group(
    tensors: Sequence[Any],
    *,
    root_rank: int,
    name: str | None,
    labels: Sequence[str] = (),
    group: str = "",
) -> list[Any]:
    """One op for tensors of one dtype. labels: the names of the tensors, whose order ranks compare. group:
    all dtypes of the group, if this is its first op."""
    check_movable(tensors[0].dtype)
    functions = ops()
    names = listing(labels)
    root = check_root(root_rank)
    with op_scope(), typed_errors():
        results = list(
            functions.rdmacoll_broadcast(
                tensors=tensors,
                root_rank=root,
                tensor_name=op_name(name),
                process_set=set_number(),
                labels=list(labels),
                manifest=f"\n{names}" if names else "",
                group=group,
                **gradient_attribute(),
            )
        )
    return must_run(results)


def gather_one(value: Any, root_rank: int, name: str | None) -> Any:
    """`gather` of one tensor."""
    check_movable(value.dtype)
    root = check_root(root_rank)
    functions = ops()
    with op_scope(), typed_errors():
        gathered = functions.rdmacoll_gather(
            tensor=value, root_rank=root, tensor_name=op_name(name), process_set=set_number()
        )
    return must_run([gathered])[0]


def scatter_one(value: Any, root_rank: int, splits: Any, name: str | None) -> Any:
    """`scatter` of one tensor. splits: as the op takes them."""
    check_movable(value.dtype)
    root = check_root(root_rank)
    functions = ops()
    with op_scope(), typed_errors():
        scattered = functions.rdmacoll_scatter(
            tensor=value, splits=splits, root_rank=root, tensor_name=op_name(name), process_set=set_number()
        )
    return must_run([scattered])[0]
