"""`rdmacoll selftest`: every operation, dtype, size, algorithm and transport against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Callable

import click
import numpy as np

from rdmacoll._abi.library import load
from rdmacoll._base.text import counted
from rdmacoll._world import world
from rdmacoll.cli import algorithm_option, references, selftest_memory, selftest_sets
from rdmacoll.cli.device_memory import gpu_of_rank
from rdmacoll.cli.report import Findings, command, note_world_of_one, print_line
from rdmacoll.cli.selftest_results import Results, everywhere
from rdmacoll.cli.transport_option import TransportName
from rdmacoll.errors import ConfigError, RdmacollError
from rdmacoll.operators import CODES, FLOATS, REDUCIBLE, ReduceOp, is_reducible

SIZES = (0, 1, 7, 1000, 100_003)
FAILURES_SHOWN = 20
ORDERS = ("run", "canonical")


def _dtypes(names: Iterator[str], results: Results, case: str) -> Iterator[np.dtype[Any]]:
    for name in names:
        dtype = references.dtype_of(name)
        if dtype is None:
            results.skip(f"{case} {name}", "numpy has no bfloat16 without the package ml_dtypes")
        else:
            yield dtype


def _allreduces(label: str, seed: int, results: Results, canonical: bool) -> None:
    me, count = world.rank(), world.size()
    for dtype in _dtypes(iter(REDUCIBLE), results, f"allreduce {label}"):
        for size in SIZES:
            arrays = [references.data_of(rank, (size,), dtype, seed) for rank in range(count)]
            for op in ReduceOp:
                if not is_reducible(dtype.name, op):
                    continue
                got = results.engine.allreduce(arrays[me], op)
                wrong = references.wrong_values(got, arrays, op)
                problem = f"{wrong} of {size} values" if wrong else ""
                if canonical and op is ReduceOp.SUM and dtype.name in FLOATS and not problem:
                    exact = references.canonical_sum(arrays)
                    if exact.tobytes() != got.tobytes():
                        problem = "not the bits of the canonical order"
                results.add(f"allreduce {op} {dtype.name} {size} {label}", everywhere(problem, got))


def _moves(label: str, seed: int, results: Results) -> None:
    me, count = world.rank(), world.size()
    for dtype in _dtypes(iter(CODES), results, f"broadcast {label}"):
        for size in SIZES:
            root = (seed + size) % count
            arrays = [references.data_of(rank, (size,), dtype, seed) for rank in range(count)]
            got = results.engine.broadcast(arrays[me], root)
            problem = "" if got.tobytes() == arrays[root].tobytes() else "not the root's values"
            results.add(f"broadcast {dtype.name} {size} {label}", everywhere(problem, got))
            ragged = [references.data_of(rank, (rank + 1, size), dtype, seed) for rank in range(count)]
            gathered = results.engine.allgather(ragged[me])
            right = np.concatenate(ragged)
            problem = "" if gathered.tobytes() == right.tobytes() else "not all ranks' values"
            problem = problem or ("" if gathered.shape == right.shape else "the shape is wrong")
            results.add(f"allgather {dtype.name} {size} {label}", everywhere(problem, gathered))


def _parts(label: str, seed: int, results: Results, canonical: bool) -> None:
    """Collectives whose ranks give or get different parts."""
    me, count = world.rank(), world.size()
    for dtype in _dtypes(iter(CODES), results, f"alltoall {label}"):
        for size in SIZES:
            root = (seed + size) % count
            arrays = [references.data_of(rank, (size, 2), dtype, seed) for rank in range(count)]
            own_rows = references.rows_of(size, me, count)
            cases: dict[str, tuple[Any, Any]] = {
                "gather": (
                    results.engine.gather(arrays[me], root),
                    np.concatenate(arrays) if me == root else None,
                ),
                "scatter": (results.engine.scatter(arrays[me], root), arrays[root][own_rows]),
                "grouped_allgather": (
                    np.concatenate(results.engine.grouped_allgather([arrays[me], arrays[me][:1]])),
                    np.concatenate([*arrays, *[array[:1] for array in arrays]]),
                ),
            }
            splits = [
                [(rank + peer + seed) % 3 * size // 3 for peer in range(count)] for rank in range(count)
            ]
            sources = [references.data_of(rank, (sum(splits[rank]), 2), dtype, seed) for rank in range(count)]
            exchanged, received = results.engine.alltoall(sources[me], splits[me])
            begins = [sum(splits[rank][:me]) for rank in range(count)]
            cases["alltoall"] = (
                exchanged,
                np.concatenate([sources[r][begins[r] : begins[r] + splits[r][me]] for r in range(count)]),
            )
            right = np.array([splits[rank][me] for rank in range(count)], np.int64)
            cases["alltoall's received splits"] = (received, right)
            for name, (got, expected) in cases.items():
                wrong = (got is None) != (expected is None) or (
                    got is not None and (got.shape != expected.shape or got.tobytes() != expected.tobytes())
                )
                problem = "other values than the inputs" if wrong else ""
                results.add(f"{name} {dtype.name} {size} {label}", everywhere(problem))
            if is_reducible(dtype.name, ReduceOp.SUM):
                _part_sums(arrays, f"{dtype.name} {size} {label}", root, results, canonical)


def _part_sums(
    arrays: list[np.ndarray[Any, Any]], case: str, root: int, results: Results, canonical: bool
) -> None:
    me, count = world.rank(), world.size()
    own_rows = references.rows_of(len(arrays[me]), me, count)
    part = results.engine.reducescatter(arrays[me], ReduceOp.SUM)
    (grouped,) = results.engine.grouped_reducescatter([arrays[me]], ReduceOp.SUM)
    reduced = results.engine.reduce(arrays[me], root, ReduceOp.SUM)
    found = {
        "reducescatter": (part, [array[own_rows] for array in arrays]),
        "grouped_reducescatter": (grouped, [array[own_rows] for array in arrays]),
        "reduce": (reduced, arrays),
    }
    for name, (got, sources) in found.items():
        problem = ""
        if got is not None:
            wrong = references.wrong_values(got, sources, ReduceOp.SUM)
            problem = f"{wrong} of {got.size} values" if wrong else ""
            if canonical and got.dtype.name in FLOATS and not problem:
                exact = references.canonical_sum(sources)
                problem = "" if exact.tobytes() == got.tobytes() else "not the bits of the canonical order"
        results.add(f"{name} {case}", everywhere(problem))


def _grouped(label: str, seed: int, results: Results) -> None:
    me, count = world.rank(), world.size()
    shapes = [(3,), (), (0,), (1000, 7), (65_537,), (2, 2, 2)]
    kinds = [np.dtype(name) for name in ("float32", "float32", "float64", "float32", "float32", "int32")]
    lists = [[references.data_of(rank, s, d, seed) for s, d in zip(shapes, kinds)] for rank in range(count)]
    got = results.engine.grouped_allreduce(lists[me], ReduceOp.SUM)
    for position, result in enumerate(got):
        arrays = [lists[rank][position] for rank in range(count)]
        wrong = references.wrong_values(result, arrays, ReduceOp.SUM)
        case = f"grouped_allreduce {kinds[position].name} {shapes[position]} {label}"
        results.add(case, everywhere(f"{wrong} values" if wrong else "", result))


def _in_world(label: str, settings: dict[str, Any], results: Results, body: Callable[[], None]) -> None:
    """Runs `body` in a world with these settings. A world that does not start is a failed case."""
    world.shutdown()
    try:
        world.init(**settings)
        body()
    except RdmacollError as error:
        results.add(label, f"{type(error).__name__}: {error}")


def _test_allreduces(
    algorithm: str, transport: str, order: str, seed: int, results: Results, log: dict[str, str]
) -> None:
    label = f"{algorithm} {transport} {order}"

    def body() -> None:
        _allreduces(label, seed, results, order == "canonical")
        if order == "run":
            _grouped(label, seed, results)

    settings = {"transport": transport, "allreduce_algorithm": algorithm, "order": order, **log}
    _in_world(label, settings, results, body)


def _test_other_calls(transport: str, order: str, seed: int, results: Results, log: dict[str, str]) -> None:
    label = f"{transport} {order}"

    def body() -> None:
        if order == "run":
            _moves(transport, seed, results)
        _parts(label, seed, results, order == "canonical")
        selftest_sets.run(label, seed, results, order == "canonical")

    _in_world(transport, {"transport": transport, "order": order, **log}, results, body)


def _report(part: str, results: Results) -> None:
    print_line(f"{part}: {results.cases} cases, {len(results.failures)} failed so far")


@click.command()
@click.option("--seed", default=1, show_default=True, help="The seed of the values.")
@click.option(
    "--transport",
    "transports",
    type=TransportName(),
    multiple=True,
    help="Test only this transport; may be given several times. Default: all that need no devices.",
)
@click.option(
    "--algorithm",
    "algorithms",
    type=algorithm_option.algorithm,
    multiple=True,
    help="Test only this algorithm; may be given several times. Default: auto, and all that can be forced.",
)
@click.option(
    "--memory",
    type=click.Choice(selftest_memory.NAMES),
    default="host",
    show_default=True,
    help="The memory of the arrays. cuda: the GPUs of a node, which its ranks take in turn.",
)
@command("selftest")
def selftest(*, seed: int, transports: tuple[str, ...], algorithms: tuple[str, ...], memory: str) -> Findings:
    """Compares all collectives with numpy.

    Start it like a program: rdmacoll run -np 4 rdmacoll selftest
    """
    world.init()
    if world.current().servers:
        raise ConfigError(
            "rdmacoll selftest begins many worlds, and parameter servers end with their first: unset "
            "RDMACOLL_MODE."
        )
    gpu = gpu_of_rank() if memory == "cuda" else None
    results = Results() if gpu is None else Results(selftest_memory.EngineOnGpu(gpu))
    note_world_of_one("rdmacoll selftest")
    # The first world logs how it was started; the others do not repeat it.
    log = {} if world.current().values.is_set("RDMACOLL_LOG") else {"log": "error"}
    count, nodes = world.size(), world.cross_size()
    rows = {row["name"]: row for row in load().transports()}
    unordered = {row["name"]: row["never_canonical"] for row in load().algorithms()}
    for transport in transports or [name for name, row in rows.items() if not row["via_nic"]]:
        if rows[transport]["shares_memory"] and nodes > 1:
            results.skip(f"transport {transport}", f"the {count} ranks are on {nodes} nodes")
            continue
        for algorithm, order in itertools.product(algorithms or algorithm_option.names(), ORDERS):
            if order == "canonical" and unordered.get(algorithm):
                why = f"it has no canonical order: {unordered[algorithm]}"
                results.skip(f"{algorithm} {transport} {order}", why)
                continue
            _test_allreduces(algorithm, transport, order, seed, results, log)
            _report(f"allreduce {algorithm}, {transport}, order {order}", results)
        for order in ORDERS:
            _test_other_calls(transport, order, seed, results, log)
            _report(f"other calls, {transport}, order {order}", results)
    failed = len(results.failures)
    counts = f"{results.cases} cases, {failed} failed, {len(results.skipped)} skipped"
    print_line(f"{counts}, {counted(count, 'rank')}" + (f", memory of {gpu.name}" if gpu else ""))
    for skipped in results.skipped:
        print_line(f"  skipped {skipped['case']}: {skipped['reason']}")
    for failure in results.failures[:FAILURES_SHOWN]:
        print_line(f"  {failure['case']}: {failure['reason']}")
    world.shutdown()
    return {
        "ok": failed == 0,
        "ranks": count,
        "memory": memory,
        "gpu": gpu.name if gpu else None,
        "cases": results.cases,
        "failed": failed,
        "failures": results.failures[:FAILURES_SHOWN],
        "skipped": results.skipped,
    }
