"""The benchmark of trainings with parameter servers: models, output, and tiny runs."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from command_lines import command_line
from marks import slow
from ranks import ROOT, clean_environment

from rdmacoll.benchmarks.team_rank.training import networks, step
from rdmacoll.benchmarks.training import judge, measure
from rdmacoll.benchmarks.training.libraries import (
    ALONE,
    CONTESTANTS,
    LIBRARIES,
    OURS,
    PEERS,
    takes_part_between_hosts,
)
from rdmacoll.benchmarks.training.models import MODELS
from rdmacoll.benchmarks.turns import Burst, Cell
from rdmacoll.cli import main
from rdmacoll.cli.bench_training import trainings_of

QUICK = ["--turns", "1", "--burst", "0.001", "--foreign", "1", "--seconds", "200"]
BETWEEN_HOSTS = {name for name in (*OURS, *PEERS) if takes_part_between_hosts(name)}


@pytest.mark.parametrize(
    ("name", "image", "variables", "count"),
    [
        ("trivial", 227, 6, 4_259_780),
        ("alexnet", 224, 16, 61_100_840),
        ("alexnet", 64, 16, 61_100_840),
        ("resnet50", 32, 161, 25_557_032),
    ],
)
def test_models_have_the_variables_of_the_literature(name, image, variables, count):
    model = MODELS[name]
    shapes = model.shapes(image)
    assert len(shapes) == variables
    assert sum(math.prod(shape) for shape in shapes) == count
    assert model.variables_bytes(image) == 4 * count


@pytest.mark.parametrize("name", ["trivial", "resnet50"])
def test_all_workers_begin_with_the_same_values_and_have_images_of_their_own(name):
    shapes = MODELS[name].shapes(8)
    values = networks.initial(shapes)
    assert [value.shape for value in values] == shapes
    assert all(value.dtype == np.float32 for value in values)
    assert all(np.array_equal(one, other) for one, other in zip(values, networks.initial(shapes)))
    scales = [value for value in values if value.ndim == 1 and value.all()]
    assert len(scales) == (53 if name == "resnet50" else 0)
    batches = [networks.batch_of(rank, 2, 8, 10) for rank in (0, 1)]
    assert batches[0][0].shape == (2, 8, 8, 3)
    assert not np.array_equal(batches[0][0], batches[1][0])


GRAPHS = """
import sys
sys.path[:0] = sys.argv[1:2]
import tensorflow as tf
from team_rank.training import networks
from rdmacoll.benchmarks.training.models import MODELS
for name, images in (("trivial", (4, 227)), ("alexnet", (16, 32, 64, 224)), ("resnet50", (32, 224))):
    for image in images:
        with tf.Graph().as_default():
            shapes = MODELS[name].shapes(image)
            weights = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes]
            pixels = tf.compat.v1.placeholder(tf.float32, (2, image, image, 3))
            loss = networks.loss_of(tf, name, weights, pixels, tf.constant([1, 2]))
            gradients = tf.gradients(loss, weights)
            assert loss.shape == (), loss.shape
            assert [tuple(each.shape) for each in gradients] == shapes, (name, image)
print("all variables have gradients")
"""


@pytest.mark.slow
def test_every_variable_has_a_gradient_whatever_the_size_of_the_images():
    result = subprocess.run(
        [sys.executable, "-c", GRAPHS, str(ROOT / "rdmacoll" / "benchmarks")],
        env=clean_environment({}),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "all variables have gradients" in result.stdout, result.stderr


def test_a_step_that_is_another_ones_is_seen():
    before = [np.full(3, 2.0, np.float32), np.zeros((2, 2), np.float32)]
    changes = [np.full(3, -1e-3, np.float32), np.full((2, 2), 1e-3, np.float32)]
    right = [values + change for values, change in zip(before, changes)]
    assert step.wrong_steps(before, changes, right) == 0
    assert step.wrong_steps(before, changes, before) == 2
    twice = [values + change for values, change in zip(right, changes)]
    assert step.wrong_steps(before, changes, twice) == 2
    right[1][1, 1] = np.nan
    assert step.wrong_steps(before, changes, right) == 1


def test_contestants_are_of_libraries_and_go_by_tcp_once():
    assert {row.library for row in CONTESTANTS.values()} == set(LIBRARIES)
    assert [name for name in OURS if takes_part_between_hosts(name)] == ["rdmacoll-sync", "rdmacoll-async"]
    assert [CONTESTANTS[name].updates for name in PEERS] == ["async", "sync"]
    assert LIBRARIES["rdmacoll-sync-tcp"].settings["RDMACOLL_TRANSPORT"] == "tcp"
    environments = {row.environment for row in LIBRARIES.values()}
    assert environments == {"tf-grpc"}  # the same TensorFlow for all


def cell(*seconds: float) -> Cell:
    cpu, peak = [1e-3, 2e-3, 4e-3], [1 << 20, 2 << 20, 4 << 20]
    return Cell([Burst([each], 0.0, sum(cpu), True, cpu, peak) for each in seconds])


def row(**cells: Cell) -> measure.Row:
    (training,) = trainings_of("trivial", None, 16)
    return measure.row_of(training, {name.replace("_", "-"): one for name, one in cells.items()}, 2)


def test_a_row_counts_the_images_of_all_workers():
    found = row(rdmacoll_sync=cell(0.02, 0.02), tf_grpc_sync=cell(0.08, 0.04), alone=cell(0.01, 0.01))
    assert found["images_per_s"]["rdmacoll-sync"] == pytest.approx(2 * 16 / 0.02)
    assert found["ratio"] == {"rdmacoll-sync": {"tf-grpc-sync": pytest.approx(3.0)}}
    assert found["communication"]["rdmacoll-sync"] == pytest.approx(0.5)
    assert found["MB_per_s"]["rdmacoll-sync"] == pytest.approx(100 * 4 * 4_259_780 / 1e6)
    assert found["cpu_ms"]["tf-grpc-sync"] == {"workers": pytest.approx(1.5), "servers": pytest.approx(2.0)}
    assert found["peak_bytes"]["alone"] == {"workers": 3 << 20, "servers": 4 << 20}


def test_goals_are_for_what_communication_binds_and_for_the_same_updates():
    slower = row(
        rdmacoll_sync=cell(0.02), rdmacoll_async=cell(0.01), tf_grpc=cell(0.03), tf_grpc_sync=cell(0.04)
    )
    assert judge.missed([slower]) == [
        f"{slower['title']}: rdmacoll, sync is 2.00 times as fast as TensorFlow's servers, sync; the goal is "
        "2.5 times"
    ]
    # 2 workers, each 17 MB in 20 ms: 13.6 Gbit/s.
    assert judge.missed([slower], 15) == []
    assert len(judge.missed([slower], 50)) == 1
    computing = row(rdmacoll_sync=cell(0.02), tf_grpc_sync=cell(0.04), alone=cell(0.017))
    assert judge.missed([computing]) == []
    bound = row(rdmacoll_sync=cell(0.02), tf_grpc_sync=cell(0.04), alone=cell(0.015))
    assert len(judge.missed([bound])) == 1


def test_a_table_has_a_line_for_each_contestant_that_was_measured():
    found = row(rdmacoll_sync=cell(0.02), tf_grpc=cell(0.04), alone=cell(0.01))
    lines = judge.table(found)
    assert lines[0].endswith("| processor ms | MiB | / TensorFlow's servers, async |")
    assert lines[2] == ("| rdmacoll, sync | 1600 | 20.0 (20.0 to 20.0) | 50 % | 1.5 + 2.0 | 3 + 4 | 2.00 |")
    assert lines[3].startswith("| TensorFlow's servers, async | 800 |")
    assert lines[4].startswith("| no servers | 3200 | 10.0 (10.0 to 10.0) | - | 1.5 |  |")
    found["time_us"]["tf-grpc"]["quiet"] = False
    assert judge.table(found)[3].startswith("| TensorFlow's servers, async | 800 (L) |")


def checked(found, names: set[str], models: list[str]) -> None:
    assert found["wrong"] == 0
    assert found["left_out"] == []
    (part,) = found["parts"]
    assert [each["model"] for each in part["rows"]] == models
    for each in part["rows"]:
        assert set(each["images_per_s"]) == names | {ALONE}
        assert all(value > 0 for ratios in each["ratio"].values() for value in ratios.values())


@pytest.mark.slow
def test_ours_trains_as_a_process_alone_does(tmp_path):
    options = ["--models", "trivial", "--image", "8", "--batch", "2", "--ours", "rdmacoll-sync"]
    code, found, output = command_line(tmp_path, "bench", "ps-training", *options, *QUICK)
    assert code == 0, output
    checked(found, {"rdmacoll-sync"}, ["trivial"])


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["1", "2"])
def test_both_sides_train_the_trivial_model(tmp_path, servers):
    options = ["--models", "trivial", "--image", "8", "--batch", "2", "--peer", "all", "--servers", servers]
    options += ["--ours", "all"]
    code, found, output = command_line(tmp_path, "bench", "ps-training", *options, *QUICK, "--turns", "2")
    assert code == 0, output
    checked(found, {*OURS, *PEERS}, ["trivial"])


@pytest.mark.parametrize("model", [slow("alexnet"), slow("resnet50")])
def test_both_sides_train_large_models(tmp_path, model):
    options = ["--models", model, "--image", "32", "--batch", "2", "--peer", "all"]
    code, found, output = command_line(tmp_path, "bench", "ps-training", *options, *QUICK)
    assert code == 0, output
    checked(found, BETWEEN_HOSTS, [model])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.slow
def test_a_link_is_between_workers_and_servers(tmp_path):
    options = ["--models", "trivial", "--image", "8", "--batch", "2", "--peer", "all", "--links", "1"]
    code, found, output = command_line(tmp_path, "bench", "ps-training", *options, *QUICK)
    assert code == 0, output
    checked(found, BETWEEN_HOSTS, ["trivial"])
    (each,) = found["parts"][0]["rows"]
    # Two workers share the server's link. The bucket lets some bytes through at once.
    least = 0.8 * (2 * each["variables_bytes"] - 192_000) * 8 / 1e3
    assert all(each["time_us"][name]["median"] >= least for name in BETWEEN_HOSTS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--models", "vgg"],
        ["--models", "resnet50", "--image", "8"],
        ["--batch", "0"],
        ["--peer", "horovod"],
        ["--ours", ""],
        ["--links", "wide"],
    ],
)
def test_wrong_usage_ends_with_2(arguments):
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(main.commands, ["bench", "ps-training", *arguments])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 2, result.output
