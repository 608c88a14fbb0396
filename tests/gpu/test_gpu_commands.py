"""`rdmacoll bench` and `rdmacoll selftest` with --memory cuda, on two ranks that share the GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import Place, own_places
from ranks import ROOT, clean_environment, run

PROGRAM = """
import numpy as np
import rdmacoll
from rdmacoll.cli.device_memory import gpu_of_rank
rdmacoll.init()
gpu = gpu_of_rank()
array = gpu.empty(100, np.float32)
gpu.put(array, np.full(100, rdmacoll.rank() + 1))
total = gpu.get(rdmacoll.engine.allreduce(array, rdmacoll.Sum))
assert (total == total[0]).all()
print("sum", float(total[0]), flush=True)
rdmacoll.shutdown()
"""
COMMANDS = ROOT / "rdmacoll" / "cli" / "main.py"


def skip_without_commands() -> None:
    """Skips the test where the packages of the command line are missing, as `make test-gpu` allows."""
    if not all(importlib.util.find_spec(name) for name in ("click", "rich")):
        pytest.skip("needs click and rich")


def run_command(place: Place, path: Path, *words: str) -> tuple[dict[str, Any], str]:
    """Runs a command on two ranks. Returns what it wrote as JSON, and what rank 0 printed."""
    skip_without_commands()
    arguments = [*words, "--json", str(path)]
    environ = place.environment(COLUMNS="200")
    outcome = run(COMMANDS, 2, arguments=arguments, env=environ, deadline_s=200)
    outcome.succeeded()
    return json.loads(path.read_text()), outcome.ranks[0].output


@pytest.mark.parametrize("place", own_places())
@pytest.mark.parametrize("kind", ["allreduce", "reduce"])
def test_bench_checks_and_measures_arrays_on_a_gpu(place: Place, kind: str, tmp_path: Path) -> None:
    options = ["--max", "64K", "--step", "64", "--turns", "2", "--burst", "0.002"]
    found, output = run_command(place, tmp_path / "f.json", "bench", kind, "--memory", "cuda", *options)
    assert [row["bytes"] for row in found["rows"]] == [8, 512, 32768]
    assert all(row["wrong"] == 0 and row["time_us"]["min"] > 0 for row in found["rows"])
    assert found["settings"]["memory"] == "cuda"
    assert "cuda (" in output


@pytest.mark.parametrize("place", own_places())
def test_bench_pair_compares_transfers_with_copies(place: Place, tmp_path: Path) -> None:
    options = ["--sizes", "8,64K", "--repeat", "2", "--burst", "0.002"]
    found, output = run_command(place, tmp_path / "f.json", "bench", "pair", "--memory", "cuda", *options)
    kinds = [["host", "host"], ["host", "GPU"], ["GPU", "GPU"]]
    assert [(row["bytes"], row["memory"]) for row in found["rows"]] == [
        (size, kind) for size in (8, 65536) for kind in kinds
    ]
    for row in found["rows"]:
        assert (row["percent_of_copies_forward"] is None) == (row["memory"] == kinds[0])
        assert min(row["latency_us"], row["GB_per_s_forward"], row["GB_per_s_back"]) > 0
    assert "GPU-GPU" in output


@pytest.mark.parametrize("place", own_places())
def test_bench_pair_ends_at_its_limit(place: Place) -> None:
    skip_without_commands()
    words = ["bench", "pair", "--memory", "cuda", "--sizes", "8", "--repeat", "1000", "--timeout", "1"]
    outcome = run(COMMANDS, 2, arguments=words, env=place.environment(COLUMNS="200"), deadline_s=100)
    for rank in outcome.ranks:
        assert rank.code == 1, outcome.text()
    assert "--timeout is 1 s: raise it, or choose fewer --sizes" in outcome.ranks[0].output, outcome.text()


@pytest.mark.parametrize("place", own_places(is_fake_slow=True))
def test_selftest_compares_arrays_on_a_gpu_with_numpy(place: Place, tmp_path: Path) -> None:
    options = ["--transport", "shm", "--algorithm", "direct"]
    found, output = run_command(place, tmp_path / "f.json", "selftest", "--memory", "cuda", *options)
    assert (found["failed"], found["memory"]) == (0, "cuda")
    assert found["cases"] > 1000
    assert f"memory of {found['gpu']}" in output


@pytest.mark.parametrize("place", own_places())
def test_rdmacoll_run_starts_ranks_that_share_a_gpu(place: Place, tmp_path: Path) -> None:
    skip_without_commands()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(COMMANDS), "run", "-np", "2", sys.executable, str(program)]
    environ = clean_environment(place.environment())
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 3.0") == 2, done.stdout
