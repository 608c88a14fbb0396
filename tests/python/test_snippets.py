"""Every Python snippet of README and docs runs as pasted, with the code that its text implies."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ranks import ROOT, clean_environment, run

from rdmacoll.optimizer import DistributedOptimizer

DOCUMENTS = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/internals").glob("*.md")),
)
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)

NUMPY = "import numpy as np, rdmacoll\n"
KERAS = """
import keras, numpy as np, rdmacoll
keras.utils.set_random_seed(1)
x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
"""
GRAPH = """
import rdmacoll
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
variable = tf.get_variable("w", [3], initializer=tf.ones_initializer())
loss = tf.reduce_sum(variable * variable)
"""
# Arrays on a GPU of the fake driver, with an imitation of cupy.
ON_GPU = """
import os
import device_array, numpy as np, rdmacoll
from cuda_sim_build import fake_driver
os.environ["RDMACOLL_CUDA_LIBRARY"] = str(fake_driver())
cupy = device_array.cupy_of(os.environ["RDMACOLL_CUDA_LIBRARY"])
rdmacoll.init()
gradients, stream = cupy.array(np.ones(4, "float32")), device_array.new_stream()
"""
FITS = {"(optimizer, ...)": '(optimizer, loss="mse")', "fit(..., ": "fit(x, y, verbose=0, "}


@dataclass(frozen=True)
class Case:
    """The code that a snippet takes for granted, and the replacements of its dots."""

    ranks: int
    before: str
    dots: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    is_slow: bool = False


# The key is the first line of a snippet, or its first line that no other snippet has.
CASES = {
    "optimizer = rdmacoll.DistributedOptimizer(optimizer)  # any": Case(2, KERAS, FITS),
    "x = np.random.default_rng(rdmacoll.rank())": Case(2, "", after="rdmacoll.check_weights(model)"),
    "train = rdmacoll.DistributedOptimizer(tf.train.Adam": Case(2, GRAPH + "rdmacoll.init()\n", is_slow=True),
    "tape = hvd.DistributedGradientTape(tape)": Case(2, KERAS + "batches = [(x, y)] * 2\n", is_slow=True),
    "rows = rdmacoll.engine.allgather(": Case(3, ""),
    "evens = rdmacoll.ProcessSet([0, 2])": Case(3, NUMPY),
    'memory = rdmacoll.engine.empty(1000, "bfloat16", device="cuda:0")': Case(
        2, ON_GPU, after="assert (total.get() == 2.0).all() and memory.shape == (1000,)"
    ),
    "last = rdmacoll.join()": Case(
        2,
        KERAS
        + "rdmacoll.init()\nepochs = 2\nmine = (x, y)\noptimizer = rdmacoll.DistributedOptimizer(optimizer)\n"
        'model.compile(optimizer, loss="mse")\n',
        {"fit(mine, ": "fit(*mine, verbose=0, "},
        is_slow=True,
    ),
    "state = hvd.elastic.KerasState(model, batch=0, epoch=0)": Case(
        2, KERAS, {"(optimizer), ...)": '(optimizer), loss="mse")'}, is_slow=True
    ),
    'total = rdmacoll.push_pull(array, rdmacoll.Sum, name="loss")': Case(
        3, NUMPY + 'rdmacoll.init(mode="ps")\ngradient, array = np.ones(4, "float32"), np.ones(9)\n'
    ),
    'model.save("model.keras")': Case(
        4,
        KERAS,
        {"fit(...)": "fit(x, y, verbose=0)"},
        'assert rdmacoll.rank() or os.path.exists("model.keras")',
        is_slow=True,
    ),
    "train_op = optimizer.minimize(loss, global_step": Case(
        4, GRAPH + "import tensorflow as tf\n", is_slow=True
    ),
    "results = rdmacoll.run(train, args=(3,)": Case(
        1,
        "",
        {'hosts="node1:2,node2:2"': 'hosts="localhost:4"'},
        "assert results == [0, 1, 2, 3], results",
    ),
    'ps.declare(weights, keras.optimizers.Adam(0.001), by_rows=["words"])': Case(
        3,
        KERAS + 'import tensorflow as tf\nrdmacoll.init(mode="ps", sync=False)\n'
        'kernel, embedding = np.ones((3, 2), "float32"), np.ones((9, 2), "float32")\n'
        "data, row_gradients, rows = [x, x], tf.ones((2, 2)), tf.constant([1, 5])\n"
        "gradient = lambda weights, batch: np.ones_like(weights['kernel'])\n",
        {"ps.save(": "if rdmacoll.rank() == 0: ps.save("},
        is_slow=True,
    ),
}


def snippets() -> list[tuple[str, str]]:
    """Returns the place and the text of each snippet in all documents."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for block in _BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            found.append((f"{path.relative_to(ROOT)}:{line}", block.group(1)))
    return found


def case_of(snippet: str) -> Case | None:
    return next((case for line, case in CASES.items() if line in snippet), None)


def is_slow(snippet: str) -> bool:
    case = case_of(snippet)
    return case is not None and case.is_slow


def test_every_snippet_has_a_case_and_every_case_a_snippet():
    unknown = [where for where, snippet in snippets() if case_of(snippet) is None]
    assert not unknown, f"say in CASES what these take for granted: {unknown}"
    texts = "\n".join(snippet for _, snippet in snippets())
    assert [line for line in CASES if line not in texts] == []


def _params() -> list[object]:
    """Returns the test's parameters. A snippet on several pages runs once."""
    places = {snippet: where for where, snippet in reversed(snippets())}
    return [
        pytest.param(snippet, id=where, marks=[pytest.mark.slow] if is_slow(snippet) else [])
        for snippet, where in places.items()
    ]


@pytest.mark.parametrize("snippet", _params())
def test_a_snippet_runs_as_it_is_pasted(snippet: str, tmp_path: Path) -> None:
    case = case_of(snippet)
    assert case is not None
    for dots, meant in case.dots.items():
        assert dots in snippet
        snippet = snippet.replace(dots, meant)
    # The program changes its folder first, since a server saves there and does not return from init().
    program = f"import os; os.chdir({str(tmp_path)!r})\n{case.before}\n{snippet}\n{case.after}\n"
    outcome = run(
        program, case.ranks, deadline_s=240, preloaded="tensorflow" in program or "keras" in program
    )
    assert [rank.code for rank in outcome.ranks] == [0] * case.ranks, outcome.text()
    assert "Error" not in outcome.text(), outcome.text()


def test_the_example_in_the_help_of_the_optimizer_runs() -> None:
    lines = inspect.getdoc(DistributedOptimizer).splitlines()
    example = "\n".join(line[4:] for line in lines if line.startswith("    "))
    assert example.startswith("rdmacoll.init()\n"), example
    outcome = run(f"{KERAS}\n{example}\nrdmacoll.check_weights(model)\n", 2, preloaded=True)
    outcome.succeeded()


def test_the_start_of_the_readme_runs_as_it_is_pasted_and_binds_no_rank(tmp_path: Path) -> None:
    (block,) = [found for found in _SHELL.findall((ROOT / "README.md").read_text()) if " -np " in found]
    (tmp_path / "train.py").write_text(
        "import os, rdmacoll\nrdmacoll.init()\n"
        "print(f'rank {rdmacoll.rank()} of {rdmacoll.size()} on {len(os.sched_getaffinity(0))} cores')\n"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        ["sh", "-e", "-c", block],
        cwd=tmp_path,
        env=clean_environment({"PATH": path}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    cores = len(os.sched_getaffinity(0))
    found = sorted(re.findall(r"rank \d of 2 on \d+ cores", result.stdout))
    assert found == [f"rank {rank} of 2 on {cores} cores" for rank in (0, 1)]


def test_every_mpirun_of_the_documents_binds_no_rank() -> None:
    commands = [
        line
        for path in DOCUMENTS
        for line in re.findall(r"(?:^|[` ])(mpirun .*-np [^`\n]*)", path.read_text(), re.MULTILINE)
    ]
    assert len(commands) >= 8
    assert [line for line in commands if "--bind-to none" not in line] == []
