"""Tries the wheel in fresh environments. The programs there cannot import the source tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from ranks import clean_environment, run  # noqa: E402

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
RANKS = 2
INSTALL_S, TRIAL_S = 1800, 600
# A program for Horovod, for each version of Keras. It imports the package of the wheel rdmacoll_horovod.
HOROVOD_PROGRAM = """
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
variable = tf.Variable([3.0, 3.0])
with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    loss = tf.reduce_sum(variable * 2.0 * hvd.rank())
print("mean", tape.gradient(loss, [variable])[0].numpy().tolist(), "of", hvd.size())
"""
HOROVOD_LINE = f"mean [1.0, 1.0] of {RANKS}"


@dataclass(frozen=True)
class Case:
    """An environment to make, with the wheel and these packages. The first installed interpreter is used.

    trains: it also gets the wheel of the package horovod, whose program horovodrun starts after a training.
    """

    name: str
    pythons: tuple[str, ...]
    extras: str = ""
    packages: tuple[str, ...] = ()
    trains: bool = False


def cases() -> list[Case]:
    """Returns the promised cases: TensorFlow 2.15 (Keras 2) to the newest, and numpy alone in each Python."""
    trainings = [
        ("2.15", "tensorflow-cpu>=2.15,<2.16", ("3.9", "3.10", "3.11")),
        ("2.18", "tensorflow-cpu>=2.18,<2.19", ("3.12", "3.11", "3.10", "3.9")),
        ("newest", "tensorflow-cpu", ("3.13", "3.12", "3.11", "3.10")),
    ]
    return [
        *(
            Case(f"tensorflow-{name}", pythons, "[mpi]", (package, "scikit-learn"), trains=True)
            for name, package, pythons in trainings
        ),
        *(Case(f"numpy-{python}", (python,)) for python in PYTHONS),
    ]


@dataclass
class Trial:
    """The outcome of a case. If `python` is empty, no interpreter was found and nothing was tried."""

    name: str
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    finding: str = ""

    def summary(self) -> str:
        """Returns the outcome in one line."""
        if not self.python:
            return "not tried: no such Python here"
        if self.finding:
            return self.finding
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        if "cases" in self.result:
            skipped = f", {len(self.result['skipped'])} skipped" if self.result["skipped"] else ""
            done = f"selftest: {self.result['cases']} cases{skipped}"
        else:
            accuracy = f"accuracy {self.result['test_accuracy']:.3f}"
            done = f"{self.result['ranks']} ranks train, weights equal, {accuracy}, horovodrun runs"
        return f"Python {self.python}, {packages}: {done}"


def interpreters() -> dict[str, Path]:
    """Finds the interpreters of PYTHONS on this machine that can make environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in PYTHONS:
        in_path = shutil.which(f"python{version}")
        places = [Path(in_path)] if in_path else []
        places += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
        for place in places:
            probe = [str(place), "-c", "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"]
            result = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
            if result.returncode == 0 and result.stdout.strip() == version:
                found[version] = place
                break
    return found


def try_case(case: Case, wheel: Path, horovod: Path, pythons: dict[str, Path]) -> Trial:
    """Makes the environment, installs the wheel there, and tries it.

    horovod: the wheel of the package horovod, which a case that trains needs.
    """
    base = next((pythons[version] for version in case.pythons if version in pythons), None)
    if base is None:
        return Trial(case.name)
    with tempfile.TemporaryDirectory(prefix="check-wheel-") as folder:
        return _try_in(Path(folder) / "environment", case, [wheel, horovod], base)


def _try_in(environment: Path, case: Case, wheels: Sequence[Path], base: Path) -> Trial:
    trial = Trial(case.name, python="?")
    python = environment / "bin" / "python"
    try:
        _call(base, "-m", "venv", environment)
        wheel, horovod = wheels
        packages: list[str | Path] = [
            f"{wheel}{case.extras}",
            *case.packages,
            *([horovod] if case.trains else []),
        ]
        _call(python, "-m", "pip", "install", "--quiet", *packages)
        about = json.loads(_call(python, _program(environment), *_names(case)))
        trial.python, trial.packages = about["python"], about["packages"]
        if not about["file"].startswith(str(environment)):
            trial.finding = f"{case.name}: rdmacoll came from {about['file']}, not from the wheel."
            return trial
        out = environment / "result.json"
        if case.trains:
            arguments: Sequence[str | Path] = [ROOT / "tests" / "train.py", "--json", out]
        else:
            arguments = [environment / "bin" / "rdmacoll", "selftest", "--json", out]
        launcher = "mpirun" if case.trains else "tcp"
        outcome = run_in_old_python(python, arguments, launcher=launcher)
        trial.result = json.loads(out.read_text()) if out.exists() else {}
        trial.finding = judged(case, trial.result, [rank.code for rank in outcome.ranks])
        if trial.finding:
            trial.finding += "\n" + outcome.text()
        elif case.trains:
            trial.finding = _finding_of_horovodrun(environment, case)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        trial.finding = f"{case.name}: {error}"
    return trial


def _finding_of_horovodrun(environment: Path, case: Case) -> str:
    """Starts the program for Horovod as its users do. Returns the finding, or ""."""
    program = environment / "program_for_horovod.py"
    program.write_text(HOROVOD_PROGRAM)
    folder = environment / "bin"
    output = _call(folder / "horovodrun", "-np", str(RANKS), folder / "python", program)
    if output.count(HOROVOD_LINE) == RANKS:
        return ""
    return f'{case.name}: horovodrun did not print "{HOROVOD_LINE}" for each rank:\n{output[-3000:]}'


def judged(case: Case, result: dict[str, Any], codes: Sequence[int | None]) -> str:
    """Returns the finding about the ranks' result and exit codes. The text is empty if there is none."""
    if not result:
        return f"{case.name}: exit codes {list(codes)}, and no result was written."
    if case.trains:
        if not result.get("weights_equal"):
            return f"{case.name}: the weights of the ranks are not equal after the training."
        if result.get("ranks") != RANKS:
            return f"{case.name}: {result.get('ranks')} ranks have trained together, not {RANKS}."
    elif not result.get("cases"):
        return f"{case.name}: the selftest has run no case."
    if not result.get("ok") or any(codes):
        return f"{case.name}: exit codes {list(codes)}, failed: {result.get('failed', result)}."
    return ""


def run_in_old_python(python: Path, arguments: Sequence[str | Path], *, launcher: str) -> Any:
    """Starts a program on all ranks with that interpreter. The source tree is not on its path."""
    command = [str(python), *map(str, arguments)]
    text = f"import os\nos.execv({command[0]!r}, {command!r})\n"
    return run(text, RANKS, launcher=launcher, deadline_s=TRIAL_S, env={"PYTHONPATH": ""})


def _names(case: Case) -> list[str]:
    named = [re.split(r"[<>=]", package)[0] for package in case.packages]
    names = ["numpy", *named, *(["keras"] if case.trains else [])]
    return [name for name in names if name != "scikit-learn"]


def _program(environment: Path) -> Path:
    """Writes a program that prints the path of rdmacoll and the versions of packages.

    The program also asserts that `import rdmacoll` imports neither TensorFlow, mpi4py nor click.
    """
    path = environment / "about.py"
    path.write_text(
        "import json, platform, sys\n"
        "from importlib import metadata\n"
        "import rdmacoll\n"
        "assert not {'tensorflow', 'mpi4py', 'click'} & set(sys.modules), 'more than numpy was imported'\n"
        "rdmacoll.engine\n"
        "about = {'file': rdmacoll.__file__, 'python': platform.python_version()}\n"
        "packages = {name: metadata.version(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({**about, 'packages': packages}))\n"
    )
    return path


def _call(*command: str | Path) -> str:
    """Returns the output of a command. Raises AssertionError with that output if the command fails."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=tempfile.gettempdir(),
        env=clean_environment({"PYTHONPATH": ""}),
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    text = (result.stdout + result.stderr)[-3000:]
    assert result.returncode == 0, f"{' '.join(map(str, command))}: exit code {result.returncode}\n{text}"
    return result.stdout
