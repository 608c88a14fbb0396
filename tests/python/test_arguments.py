"""Calls refuse arguments that do not fit, with the value and the cure, and no rank waits."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest
from ranks import ROOT, run_python

from rdmacoll import ConfigError
from rdmacoll._abi import arguments
from rdmacoll.operators import CODES, ReduceOp, is_reducible

# Calls that are refused in a world of one, and words of the refusal.
REFUSED = [
    ("engine.allreduce(a, 'sum')", ["op='sum'", "rdmacoll.Average"]),
    ("engine.allreduce(a, None)", ["op=None"]),
    ("engine.allreduce(a, 1.0)", ["op=1.0"]),
    ("engine.allreduce(a, True)", ["op=True"]),
    ("engine.allreduce(a, 99)", ["op=99"]),
    ("engine.grouped_allreduce([a], 'max')", ["op='max'"]),
    ("engine.allreduce(a, name=3)", ["name=3", "int", "str"]),
    ("engine.allreduce(a, name=[])", ["name=[]"]),
    ("engine.allreduce(a, name='a\\0b')", ["NUL"]),
    ("engine.allreduce(a, name='\\ud800')", ["UTF-8"]),
    ("engine.barrier(name=b'x')", ["name=b'x'"]),
    ("engine.grouped_allreduce([a, i], S, 3)", ["name=3"]),
    ("engine.broadcast(a, 1.5)", ["root_rank=1.5", "0 to 0"]),
    ("engine.broadcast(a, '0')", ["root_rank='0'"]),
    ("engine.broadcast(a, None)", ["root_rank=None"]),
    ("engine.broadcast(a, True)", ["root_rank=True"]),
    ("engine.allreduce(a, prescale_factor=None)", ["prescale_factor=None", "1.0"]),
    ("engine.allreduce(a, postscale_factor='z')", ["postscale_factor='z'"]),
    ("engine.grouped_allreduce([a], prescale_factor=float('nan'))", ["prescale_factor=nan"]),
    ("engine.allreduce(i, S, prescale_factor=0.5)", ["0.5", "int64", "float dtype"]),
    ("engine.grouped_allreduce([a, i], S, postscale_factor=0.5)", ["0.5", "int64"]),
    ("engine.allreduce(np.ma.array([1.0, 2.0], mask=[0, 1]))", ["mask", "filled"]),
    ("engine.allreduce(a, out=np.ma.array([1.0, 2.0, 3.0]))", ["out", "mask"]),
    ("engine.allgather([[1, 2], [3]])", ["list"]),
    ("engine.scatter(None, 0)", ["the array is None", "every rank", "np.empty((0, 3))"]),
    ("engine.allreduce(None)", ["the array is None", "every rank"]),
    ("engine.broadcast(np.zeros(2, 'i4, f4'), 0)", ["f4", "cannot be sent", "bool", 'view("uint8")']),
    ("engine.empty('3')", ["shape='3'"]),
    ("engine.empty(-3)", ["shape=-3"]),
    ("engine.empty((-1,))", ["shape=(-1,)"]),
    ("engine.empty(2.5)", ["shape=2.5"]),
    ("engine.empty(3, object)", ["object", "fixed size"]),
    ("engine.empty(3, 'nonsense')", ["nonsense"]),
    ("engine.empty((1 << 40, 1 << 40))", ["bytes"]),
    ("engine.barrier_async().wait('soon')", ["timeout_s='soon'"]),
    ("engine.barrier_async().wait(float('nan'))", ["timeout_s=nan"]),
    ("engine.grouped_allreduce([a, b], S, out=[b, a])", ["out[", "array ", "share memory"]),
    ("engine.grouped_allreduce([a, b], S, out=[a, a])", ["out[0]", "out[1]", "share memory"]),
    ("engine.grouped_allreduce([a[::2], b[:2]], S, out=[w[::2], w[1:3]])", ["out[0]", "out[1]"]),
    ("engine.reducescatter(np.float32(1))", ["reducescatter", "first dimension", "(1,)"]),
    ("engine.grouped_reducescatter([a, 3.0])", ["first dimension"]),
    ("engine.allreduce(a > 0)", ["Average of bool", "rdmacoll.Max for 'any'", "rdmacoll.Min for 'all'"]),
    ("engine.reducescatter(a > 0, S)", ["Sum of bool", "rdmacoll.Max for 'any'"]),
    ("engine.reduce(a > 0, 0, rdmacoll.Product)", ["Product of bool", "rdmacoll.Min for 'all'"]),
    ("engine.grouped_allreduce([a, a > 0], S)", ["Sum of bool"]),
    ("engine.allreduce(a > 0, rdmacoll.Max, prescale_factor=2)", ["prescale_factor=2.0: bool values"]),
    ("engine.allreduce(np.complex64(1), rdmacoll.Max)", ["Max of complex64", "Sum and Average"]),
    ("engine.reducescatter(i)", ["Average of int64"]),
    ("engine.reducescatter(i, S, prescale_factor=0.5)", ["0.5", "int64"]),
    ("engine.reduce(a, 1)", ["root_rank=1", "0 to 0"]),
    ("engine.reduce(a, 0, 'sum')", ["op='sum'"]),
    ("engine.reduce(a, 0, S, out=i)", ["out has shape"]),
    ("engine.gather(a, None)", ["root_rank=None"]),
    ("engine.gather(np.array([None]), 0)", ["object", "cannot be sent"]),
    ("engine.scatter(np.float32(1), 0)", ["scatter", "first dimension"]),
    ("engine.scatter(a, 0, [2])", ["splits (2)", "2 rows", "has 3"]),
    ("engine.scatter(a, 0, [1, 2])", ["splits=[1, 2]", "2 numbers", "1 ranks"]),
    ("engine.alltoall(np.float32(1))", ["alltoall", "first dimension"]),
    ("engine.alltoall(a, [])", ["splits=[]", "0 numbers"]),
    ("engine.alltoall(a, [-3])", ["splits (-3)", "negative"]),
    ("engine.alltoall(a, [1.5])", ["splits=[1.5]", "whole numbers"]),
    ("engine.alltoall(a, [1 << 64])", ["whole numbers"]),
    ("engine.alltoall(a, 3)", ["splits=3"]),
]
ACCEPTED = [
    "engine.alltoall(a, [3])[1].tolist() == [3]",
    "engine.alltoall(a, np.array([3], np.int8))[0].tolist() == a.tolist()",
    "engine.scatter(a, 0, (3,)).tolist() == a.tolist()",
    "engine.gather(2.5, np.int64(0)).tolist() == [2.5]",
    "engine.reduce(2.5, 0).shape == ()",
    "engine.empty(np.int64(4)).shape == (4,)",
    "engine.empty((np.int32(2), 3)).shape == (2, 3)",
    "engine.allreduce(i, S, prescale_factor=2).tolist() == [2, 4, 6]",
    "engine.allreduce(a, 0).tolist() == a.tolist()",
    "engine.broadcast(a, np.int64(0)).tolist() == a.tolist()",
    "engine.barrier_async().wait(float('inf')) is None",
    "engine.allreduce(a > 1, rdmacoll.Max).tolist() == [False, True, True]",
    "engine.grouped_reducescatter([a > 1], rdmacoll.Min)[0].dtype == bool",
    "engine.reduce(a > 1, 0, rdmacoll.Min, prescale_factor=1).tolist() == [False, True, True]",
    "engine.barrier_async().wait(1e300) is None",
    "[x.tolist() for x in engine.grouped_allreduce([a, b], S, out=[a, b])] == [[1, 2, 3], [1, 1, 1]]",
    "engine.grouped_allreduce([w[::2], w[1::2]], S, out=[w[::2], w[1::2]])[1].tolist() == [2.0, 4.0]",
    "len(engine.grouped_allreduce([a, a], S, out=[b, w[:3]])) == 2",
]
REFUSED_BY_TENSORFLOW = [
    ("rdmacoll.allreduce(t, 'sum')", ["op='sum'"]),
    ("rdmacoll.allreduce(t, name=3)", ["name=3"]),
    ("rdmacoll.allreduce(t, prescale_factor=float('nan'))", ["prescale_factor=nan"]),
    ("rdmacoll.grouped_allreduce([t], postscale_factor=None)", ["postscale_factor=None"]),
    ("rdmacoll.allreduce(tf.constant([1, 2]), S, prescale_factor=0.5)", ["0.5", "int32"]),
    ("rdmacoll.allreduce(t > 1)", ["Average of bool", "rdmacoll.Max for 'any'", "rdmacoll.Min for 'all'"]),
    ("rdmacoll.grouped_reducescatter([t, t > 1], S)", ["Sum of bool"]),
    ("rdmacoll.reduce(t > 1, 0, rdmacoll.Max, postscale_factor=3)", ["postscale_factor=3.0: bool values"]),
    ("rdmacoll.allreduce(tf.ragged.constant([[1.0], []]))", ["RaggedTensor", "to_tensor()"]),
    ("rdmacoll.allgather(tf.sparse.from_dense([1.0, 0.0]))", ["SparseTensor", "to_dense()"]),
    ("rdmacoll.allreduce(np.ma.array([1.0, 2.0], mask=[0, 1]))", ["the array is a masked array", "filled"]),
    ("rdmacoll.broadcast(t, 0.5)", ["root_rank=0.5"]),
    ("rdmacoll.broadcast_variables([t])", ["variables[0]", "broadcast()"]),
    ("rdmacoll.DistributedGradientTape(tf.GradientTape(), bucket_bytes='1M')", ["bucket_bytes='1M'"]),
    ("rdmacoll.DistributedGradientTape(tf.GradientTape(), prescale_factor='x')", ["prescale_factor='x'"]),
]
# A loss-scaling optimizer contains the optimizer that it scales.
REFUSED_BY_TENSORFLOW += [
    (text, ["wrapped already", "twice"])
    for text in (
        "wrap(wrap(SGD()))",
        "wrap(Scaled(wrap(SGD())))",
        "[(wrap(scaled), wrap(scaled.inner_optimizer)) for scaled in [Scaled(SGD())]]",
    )
]
TENSORFLOW = """
import keras, tensorflow as tf
from keras.optimizers import SGD, LossScaleOptimizer as Scaled
t, wrap = tf.constant([1.0, 2.0]), rdmacoll.DistributedOptimizer
"""
PROGRAM = """
import sys, numpy as np, rdmacoll
from rdmacoll import engine
{header}
rdmacoll.init()
S = rdmacoll.Sum
engine.allreduce(np.ones(3), S), engine.allreduce(np.ones(3))    # every table is filled
for text in {texts!r}:
    a, b, i, w = np.array([1.0, 2.0, 3.0]), np.ones(3), np.array([1, 2, 3]), np.array([1.0, 2.0, 3.0, 4.0])
    try:
        print([eval(text), ""])
    except Exception as error:
        print([type(error).__name__, str(error)])
"""


def evaluated(texts: list[str], header: str = "") -> list[list[object]]:
    result = run_python("-c", PROGRAM.format(texts=texts, header=header))
    lines = result.stdout.splitlines()
    assert len(lines) == len(texts), result.stderr
    return [ast.literal_eval(line.replace("nan", "None")) for line in lines]


@pytest.mark.parametrize(("cases", "header"), [(REFUSED, ""), (REFUSED_BY_TENSORFLOW, TENSORFLOW)])
def test_what_does_not_fit_is_a_config_error_with_value_and_cure(cases, header):
    problems = []
    for (text, words), (kind, sentence) in zip(cases, evaluated([text for text, _ in cases], header)):
        missing = [word for word in words if word.replace("nan", "None") not in str(sentence)]
        if kind != "ConfigError" or missing:
            problems.append((text, kind, sentence, missing))
    assert not problems, "\n".join(map(str, problems))


def test_what_fits_is_taken():
    found = evaluated(ACCEPTED)
    assert all(value is True for value, _ in found), list(zip(ACCEPTED, found))


@pytest.mark.parametrize("count", [2, 9])
def test_a_group_is_searched_for_shared_memory_in_any_order(count):
    memory = np.zeros(10 * count)
    blocks = [memory[10 * k : 10 * k + 10] for k in range(count)]
    arguments.check_apart([np.ones(10)] * count, blocks[::-1])
    arguments.check_apart(blocks, blocks)
    arguments.check_apart([memory[k::count] for k in range(count)], [memory[k::count] for k in range(count)])
    with pytest.raises(ConfigError, match=rf"out\[0\] and out\[{count - 1}\] share memory"):
        arguments.check_apart([np.ones(10)] * count, [memory[5:15], *blocks[2:], blocks[0]])


def test_the_documented_dtypes_are_those_of_the_code():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "numpy.md").read_text(), re.MULTILINE)
    sums = set(dict(rows)["Sum"].split(", "))
    assert sums == {dtype for dtype in CODES if is_reducible(dtype, ReduceOp.SUM)}
    assert dict(rows)["collectives that only move values"].startswith("those of Sum, and bool.")
    assert sums | {"bool"} == set(CODES)


def test_a_null_communicator_is_refused():
    program = (
        "from mpi4py import MPI\nimport rdmacoll\n"
        "try:\n    rdmacoll.init(MPI.COMM_NULL)\nexcept rdmacoll.ConfigError as error:\n    print(error)\n"
    )
    result = run_python("-c", program, timeout_s=60)
    assert "COMM_NULL" in result.stdout, result.stderr
