"""161 gradients of ResNet-50 (102 MB, float32) in one step: our TensorFlow op against plain Open MPI.

    mpirun --bind-to none -np 2 python benchmarks/resnet_gradients.py [--turns 9] [--json FILE]

Ours: one `tf.function` that reduces all tensors through the buckets that the optimizer wrapper cuts, first
of tensors that live elsewhere, then of gradients that the step has made itself (reduced in place, with the
time of the same step without us beside it). The peer: MPI_Allreduce in place, tensor by tensor, on numpy
buffers through mpi4py, the fastest that raw MPI offers. All turn about in one run; the ratio of each turn
is what counts. Sums are checked first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import rdmacoll
from rdmacoll.cli.resnet import resnet50_shapes


def main() -> None:
    """Prints the two medians and the ratio; rank 0 writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import tensorflow as tf

    rdmacoll.init()
    rank, ranks = rdmacoll.rank(), rdmacoll.size()
    shapes = resnet50_shapes()
    total = sum(int(np.prod(shape)) for shape in shapes) * 4
    tensors = [tf.fill(shape, float(rank + 1)) for shape in shapes]
    arrays = [np.full(shape, rank + 1, dtype=np.float32) for shape in shapes]
    world = MPI.COMM_WORLD

    from rdmacoll.optimizer import buckets

    entries = [buckets.Entry("float32", shape, 4 * int(np.prod(shape))) for shape in shapes]
    cut = [bucket.indices for bucket in buckets.cut(entries, bucket_bytes=26214400)]

    def reduced(values: list[tf.Tensor], prefix: str) -> list[tf.Tensor]:
        sums = list(values)
        for number, bucket in enumerate(cut):
            of_bucket = rdmacoll.grouped_allreduce(
                [values[i] for i in bucket], op=rdmacoll.Sum, name=f"{prefix}{number}"
            )
            for i, value in zip(bucket, of_bucket):
                sums[i] = value
        return sums

    @tf.function
    def step(*values: tf.Tensor) -> list[tf.Tensor]:
        return reduced(list(values), "bucket")

    # The factor is not known when the graph is made, so the products are computed in each step.
    @tf.function
    def making_step(factor: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        return reduced([value * factor for value in values], "made")

    @tf.function
    def bare_step(factor: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        return [value * factor for value in values]

    one = tf.constant(1.0)
    expected = ranks * (ranks + 1) / 2
    for value in [*step(*tensors), *making_step(one, *tensors)]:
        assert float(tf.reduce_min(value)) == float(tf.reduce_max(value)) == expected
    for array in arrays:
        world.Allreduce(MPI.IN_PLACE, array)
        assert array.min() == array.max() == expected

    def timed(run: object) -> float:
        world.Barrier()
        begin = time.perf_counter()
        run()  # type: ignore[operator]
        return float(world.allreduce(time.perf_counter() - begin, op=MPI.MAX))

    def ours() -> None:
        step(*tensors)[-1].numpy()

    def making() -> None:
        making_step(one, *tensors)[-1].numpy()

    def bare() -> None:
        bare_step(one, *tensors)[-1].numpy()

    def peer() -> None:
        for array in arrays:
            world.Allreduce(MPI.IN_PLACE, array)

    times: dict[str, list[float]] = {"ours": [], "making": [], "bare": [], "peer": []}
    for turn in range(options.turns + 3):
        for name, run in (("ours", ours), ("peer", peer), ("making", making), ("bare", bare)):
            seconds = timed(run)
            if turn >= 3:
                times[name].append(seconds)
    ratios = [peer / mine for peer, mine in zip(times["peer"], times["ours"])]
    if rank == 0:
        print(
            f"{len(shapes)} tensors, {total / 1e6:.1f} MB, {len(cut)} buckets, "
            f"{ranks} ranks, {os.cpu_count()} cores"
        )
        for name, label in (
            ("ours", "TensorFlow op"),
            ("peer", "raw MPI"),
            ("making", "a step that makes them"),
            ("bare", "that step without us"),
        ):
            row = times[name]
            print(
                f"{label:>26}: {statistics.median(row) * 1e3:7.1f} ms"
                f"  ({min(row) * 1e3:.1f} to {max(row) * 1e3:.1f})"
            )
        print(
            f"{'raw MPI / ours':>26}: {statistics.median(ratios):7.2f}"
            f"     ({min(ratios):.2f} to {max(ratios):.2f})"
        )
        if options.json:
            report = {
                "command": "resnet_gradients",
                "ok": True,
                "ranks": ranks,
                "machine": platform.platform(),
            }
            options.json.write_text(
                json.dumps(
                    {**report, "times_s": times, "ratio": statistics.median(ratios), "buckets": len(cut)}
                )
            )
    rdmacoll.shutdown()


if __name__ == "__main__":
    main()
