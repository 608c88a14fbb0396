"""The checks of `rdmacoll doctor` about software: the engine, settings, TensorFlow, Keras. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from rdmacoll.cli.doctor_facts import Machine
from rdmacoll.cli.doctor_findings import Finding, note, ok, problem

_TENSORFLOW_MIN, _TENSORFLOW_TESTED = (2, 15), (2, 21)
_REBUILD = "make setup in the source tree, or pip install --force-reinstall rdmacoll"


def engine(machine: Machine) -> Iterator[Finding]:
    """librdmacoll itself."""
    found = machine.engine
    if found.problem:
        yield problem(
            "librdmacoll",
            found.problem,
            why="nothing of rdmacoll works without its engine",
            cure=_REBUILD,
            check=f"ls -l {shlex.quote(found.path)}; rdmacoll config",
        )
    elif found.version != machine.package:
        yield problem(
            "librdmacoll",
            f"{found.path} is version {found.version}, the Python package {machine.package}",
            why="the library and the package must have the same version",
            cure="pip install --force-reinstall rdmacoll, or make native in the source tree",
            check="rdmacoll --version; rdmacoll selftest",
        )
    else:
        yield ok(
            "librdmacoll",
            f"{found.version}, C interface {found.abi}, {found.path}",
            why="it matches the Python package",
            check="rdmacoll --version; rdmacoll selftest",
        )


def settings(machine: Machine) -> Iterator[Finding]:
    """The settings of the user."""
    found = machine.settings
    if found.problem:
        yield problem(
            "settings",
            found.problem,
            why="init() refuses a wrong setting",
            cure="correct the variable, or unset it",
            check="rdmacoll config --all",
        )
        return
    notes = [str(row["note"]) for row in found.rows if row.get("note")]
    for text in notes:
        yield note(
            "settings",
            text,
            why="some of these variables have no effect",
            cure="unset these variables, or write them as in the list of settings",
            check="rdmacoll config --all",
        )
    set_texts = [f"{row['name']}={row['value']}" for row in found.rows if row["source"] == "environment"]
    if not notes and found.rows:
        seen = ", ".join(set_texts) or "none is set: defaults"
        yield ok("settings", seen, why="set variables take effect", check="rdmacoll config --all")


def _pair(version: str) -> tuple[int, int]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def tensorflow(machine: Machine) -> Iterator[Finding]:
    """TensorFlow, and rdmacoll's ops for it."""
    found = machine.packages
    if not found.tensorflow:
        yield note(
            "TensorFlow",
            "it is not installed",
            why="rdmacoll.engine works with numpy alone; optimizers, tapes and callbacks need TensorFlow",
            cure="pip install 'rdmacoll[tensorflow]'",
            check="python -c 'import tensorflow'",
            is_standing=True,
        )
        return
    version = f"{found.tensorflow_package} {found.tensorflow}"
    if _pair(found.tensorflow) < _TENSORFLOW_MIN:
        yield problem(
            "TensorFlow",
            f"{version} is older than 2.15",
            why="rdmacoll's ops are made for TensorFlow 2.15 and newer",
            cure=f"pip install --upgrade {found.tensorflow_package}",
            check="python -c 'import tensorflow; print(tensorflow.__version__)'",
        )
    elif _pair(found.tensorflow) > _TENSORFLOW_TESTED:
        yield note(
            "TensorFlow",
            f"{version} is newer than 2.21, the newest that rdmacoll was tested with",
            why="its interface for ops may have changed; rdmacoll says so when it loads them",
            cure="if the check below fails: pip install 'tensorflow<2.22'",
            check="rdmacoll doctor --load-tensorflow",
        )
    else:
        yield ok(
            "TensorFlow",
            version,
            why="rdmacoll's ops are made for TensorFlow 2.15 and newer",
            check="python -c 'import tensorflow; print(tensorflow.__version__)'",
        )
    yield from _op_library(machine)


def _op_library(machine: Machine) -> Iterator[Finding]:
    found = machine.packages
    why, check = "tensors reach the engine through them", "rdmacoll doctor --load-tensorflow"
    if not found.has_op_library:
        seen = f"{found.op_library} is missing: rdmacoll was built without its TensorFlow ops"
    elif found.op_library_fails:
        seen = f"{found.op_library} cannot be loaded: {found.op_library_fails}"
    else:
        is_loaded = found.op_library_was_loaded
        loaded = "their library loads" if is_loaded else "their library exists; --load-tensorflow loads it"
        yield ok("TensorFlow ops", loaded, why=why, check=check)
        return
    yield problem(
        "TensorFlow ops",
        seen,
        why=why,
        cure=_REBUILD,
        check=check,
    )


def keras(machine: Machine) -> Iterator[Finding]:
    """Keras 3 or Keras 2."""
    found = machine.packages
    legacy = f", tf-keras {found.tf_keras}" if found.tf_keras else ""
    if not found.tensorflow:
        return
    if not found.keras:
        yield note(
            "Keras",
            "it is not installed" + legacy,
            why="gradient tapes work without Keras; wrapped optimizers and callbacks need it",
            cure="pip install keras",
            check="python -c 'import keras'",
        )
    elif _pair(found.keras) < (3, 0) and _pair(found.tensorflow) >= (2, 16):
        yield note(
            "Keras",
            f"Keras {found.keras} with TensorFlow {found.tensorflow}{legacy}",
            why="TensorFlow from 2.16 on is made for Keras 3",
            cure="pip install --upgrade keras, or tf-keras for programs of Keras 2",
            check="python -c 'import keras; print(keras.__version__)'",
        )
    else:
        yield ok(
            "Keras",
            found.keras + legacy,
            why="wrapped optimizers and callbacks use it",
            check="python -c 'import keras; print(keras.__version__)'",
        )
