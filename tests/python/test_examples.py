"""Every example runs as its docstring says, and uses public names alone."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from marks import slow
from ranks import ROOT, Outcome, free_addresses, run
from test_run_command import launch

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES_MAX = 60

# Runs an example, and reports a digest of its weights.
PROGRAM = """
import hashlib, runpy, sys
from ranks import report
BEFORE
sys.argv = sys.argv[1:]
found = runpy.run_path(sys.argv[0], run_name="__main__")
arrays = found["model"].get_weights() if "model" in found else found.get("values", [])
report(hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest() if arrays else "")
"""
IN_16_BITS = """
import functools, rdmacoll
rdmacoll.DistributedOptimizer = functools.partial(
    rdmacoll.DistributedOptimizer, compression=rdmacoll.Compression.fp16
)
"""
ASYNCHRONOUS = {"RDMACOLL_MODE": "ps", "RDMACOLL_PS_SYNC": "0"}
LINE = r"2 workers and 1 server found \[1\.0, -2\.0, 0\.5\] and 3\.000"


def path_of(name: str) -> Path:
    (path,) = [path for path in EXAMPLES if path.name.startswith(name)]
    return path


def ranks_of(path: Path) -> int:
    """The number of ranks in the docstring's command."""
    found = re.search(
        rf"rdmacoll run -np (\d)(?: --min-np \d)? python examples/{path.name}", path.read_text()
    )
    assert found is not None, path
    return int(found.group(1))


def run_example(
    name: str, *, arguments: Sequence[str] = (), before: str = "", env: Mapping[str, str] | None = None
) -> Outcome:
    """Runs an example on as many ranks as its docstring says. With TensorFlow the ranks are forked."""
    path = path_of(name)
    has_tensorflow = re.search("^import (keras|tensorflow)", path.read_text(), re.MULTILINE) is not None
    outcome = run(
        PROGRAM.replace("BEFORE", before),
        ranks_of(path) + bool(env),  # asynchronous servers need a further rank
        launcher="tcp" if has_tensorflow else "mpirun",
        preloaded=has_tensorflow,
        arguments=[str(path), *arguments],
        env=env,
    )
    assert all(rank.code == 0 for rank in outcome.ranks), outcome.text()
    return outcome


@pytest.mark.parametrize(
    ("name", "output"),
    [
        slow("01", r"ranks: 2, accuracy 0\.9[5-9]\d"),
        ("02", r"ranks: 2, accuracy 0\.9[5-9]\d after 400 steps"),
        slow("03", r"steps of an epoch, by rank: \[15, 30\]; accuracy 0\.9"),
        ("04", LINE),
        ("05", LINE),
        ("06", r"average  \[1\.0, 2\.0, 3\.0, 4\.0\](.|\n)*prepared  \[27\.0, 27\.0, 27\.0, 27\.0\]"),
        ("07", r"ranks: 2, loss 0\.0000\d\d, kernel \[1\.0, -2\.0, 0\.5\], bias 3\.000"),
        ("08", r"rank 0: mean of all      \[1\.5, 1\.5, 1\.5\]\n"),
        # TensorFlow may report in between that it has no fast kernels for the processor.
        slow(
            "09",
            r"none: loss 0\.\d+, 50\.7 MB of gradients\n(.*\n)*?fp16: loss 0\.\d+, 25\.4 MB of gradients",
        ),
        ("10", r"rank 1 of 2 on .*; sum of all ranks: 1"),
    ],
)
def test_an_example_prints_its_result_and_leaves_equal_weights(name, output):
    outcome = run_example(name)
    assert re.search(output, outcome.text()), outcome.text()
    assert len({digest for digest in outcome.reports if digest is not None}) == 1, outcome.text()


@pytest.mark.slow
def test_a_session_continues_from_its_folder_also_with_gradients_of_16_bits(tmp_path):
    for steps, before in ((400, ""), (800, IN_16_BITS)):
        outcome = run_example("02", arguments=[str(tmp_path)], before=before)
        assert f"after {steps} steps" in outcome.text()
        assert len(set(outcome.reports)) == 1, outcome.text()


@pytest.mark.slow
def test_a_session_trains_with_asynchronous_servers_too():
    outcome = run_example("02", env=ASYNCHRONOUS)
    assert re.search(r"ranks: 2, accuracy 0\.9[5-9]\d after 400 steps", outcome.text()), outcome.text()


@pytest.mark.slow
def test_an_elastic_job_goes_on_from_its_last_commit():
    done = launch("-np", "3", "--min-np", "2", sys.executable, str(path_of("11")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 3 begins at step 0\n") == 3
    assert done.stdout.count("of 2 begins at step 100\n") == 2
    assert "loss 0.000000, kernel [1.0, -2.0, 0.5], bias 3.000" in done.stdout


def test_ranks_start_by_hand_from_their_arguments():
    (address,) = free_addresses(1)
    arguments = {rank: [str(rank), "2", address] for rank in range(2)}
    outcome = run(path_of("10"), 2, launcher="hand", arguments_of=arguments)
    assert [rank.code for rank in outcome.ranks] == [0, 0], outcome.text()
    assert "rank 1 of 2 on " in outcome.text()


def private_names(path: Path) -> list[str]:
    """The private names of rdmacoll that a program uses, and modules that are no part of its interface."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            found.append(node.attr)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rdmacoll"):
            found.append(f"from {node.module}")
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("rdmacoll.")]
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_is_short_uses_public_names_and_is_linked_by_the_readme(path):
    assert private_names(path) == []
    assert len(path.read_text().splitlines()) <= LINES_MAX
    assert ranks_of(path) >= 2
    assert f"](examples/{path.name})" in (ROOT / "README.md").read_text()
