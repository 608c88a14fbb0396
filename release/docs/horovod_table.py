"""Compares the public names of Horovod 0.28.1 with those here, and writes the tables of docs/from-horovod.md:
python release/docs/horovod_table.py

`horovod_surface.json` has Horovod's modules with their names, arguments and defaults, as facts.
`horovod_variables.json` has its variables, by the program that reads or sets them.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rdmacoll._abi.library import load
from rdmacoll._start.horovod_variables import OF_LAUNCHERS, WITHOUT_EFFECT

SURFACE = Path(__file__).with_name("horovod_surface.json")
VARIABLES = Path(__file__).with_name("horovod_variables.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-horovod.md"
# The tables of the page stand between these lines.
BEGIN, END = "<!-- {}: begin -->\n", "<!-- {}: end -->\n"
BUILD = "read where Horovod is built"
# Horovod's modules, and their places here.
PLACES = {
    "horovod": "rdmacoll",
    "horovod.tensorflow": "rdmacoll.tensorflow",
    "horovod.tensorflow.elastic": "rdmacoll.tensorflow.elastic",
    "horovod.tensorflow.keras": "rdmacoll.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks": "rdmacoll.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "rdmacoll.tensorflow.keras.elastic",
    "horovod.keras": "rdmacoll.keras",
    "horovod.keras.callbacks": "rdmacoll.keras.callbacks",
    "horovod.keras.elastic": "rdmacoll.keras.elastic",
}
# Names that differ, by the reason: "module: names", or "module" for all names of a module.
DIFFERENT: dict[str, list[str]] = {}
# Names that do more than Horovod's, or not everything.
NOTES: dict[str, str] = {
    "allgather_object": "better: each object is signed with the job's secret before it is read",
    "allreduce": "better: also of bool and complex; the same bits on every rank",
    "broadcast_object": "better: each object is signed with the job's secret before it is read",
    "BroadcastGlobalVariablesCallback": "better: before the first batch, with the optimizer's variables",
    "Compression": "better: also bf16, and topk and onebit for optimizers and tapes",
    "DistributedGradientTape": "better: the same tape; a wrapped optimizer does not reduce again",
    "SyncBatchNormalization": "better: rows of unequal batches weigh the same; process sets; every Keras",
    "horovod.run": "better: without MPI; functions and results are sealed with the job's secret",
    "run": "in a world that stays as it is",
    "join": "better: for a process set, too",
    "start_timeline": "also without HOROVOD_TIMELINE=DYNAMIC; no cycles to mark, no [phases](#timelines)",
}


def surface() -> dict[str, dict[str, Any]]:
    """The names of Horovod's modules, each with its kind, arguments and methods."""
    return json.loads(SURFACE.read_text())  # type: ignore[no-any-return]


def reasons() -> dict[str, str]:
    """The reason for each name that differs. A key is "module.name"."""
    known = surface()
    return {
        f"{module}.{name}": reason
        for reason, entries in DIFFERENT.items()
        for module, _, names in (entry.partition(": ") for entry in entries)
        for name in (names.split() or known[module])
    }


def difference(value: Any, facts: Mapping[str, Any], module: ModuleType | Any) -> str:
    """The difference between `value` and Horovod's name with these facts; "" if there is none.

    Additional arguments need defaults, and come after Horovod's. An argument that Horovod needs may have a
    default. Defaults are compared as expressions of the module.
    """
    if any(not hasattr(value, method) for method in facts.get("methods", ())):
        return "has other methods"
    if "arguments" not in facts:
        return ""
    signature = inspect.signature(value)
    positional = [
        one for one in signature.parameters.values() if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    expected = [argument for argument in facts["arguments"] if not argument[0].startswith("**")]
    if [one.name for one in positional[: len(expected)]] != [argument[0] for argument in expected]:
        return f"has other arguments: {signature}"
    for one, (name, *default) in zip(positional, expected):
        if not default:
            continue
        scope = {**vars(importlib.import_module("rdmacoll.tensorflow")), **vars(module)}
        right = eval(default[0], scope)
        if one.default is not right and one.default != right:
            return f"has another default of {name}: {one.default!r}"
    if any(argument[0].startswith("**") for argument in facts["arguments"]):
        kinds = [one.kind for one in signature.parameters.values()]
        return "" if inspect.Parameter.VAR_KEYWORD in kinds else "takes no other keywords"
    others = positional[len(expected) :]
    return "needs other arguments" if any(one.default is one.empty for one in others) else ""


def is_there(module: str) -> bool:
    """Whether there is a module of this name."""
    return importlib.util.find_spec(module) is not None


def differences() -> dict[str, str]:
    """The difference of each name of Horovod that is missing here or differs."""
    found = {}
    for horovod, names in surface().items():
        place = PLACES[horovod]
        module: Any = importlib.import_module(place) if is_there(place) else None
        for name, facts in names.items():
            text = "is missing"
            if hasattr(module, name):
                text = difference(getattr(module, name), facts, module)
            if text:
                found[f"{horovod}.{name}"] = text
    return found


def table() -> str:
    """The table in Markdown: a section for each module, a row for each name."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    missing = reasons()
    for module, names in surface().items():
        yield f"### `{module}`\n\nHere: `{PLACES[module]}`.\n\n| name | here |\n|---|---|"
        for name in sorted(names, key=str.lower):
            reason = missing.get(f"{module}.{name}")
            text = reason or NOTES.get(f"{module}.{name}") or NOTES.get(name, "same")
            yield f"| `{name}` | {text} |"
        yield ""


def variables() -> dict[str, list[str]]:
    """Horovod's variables, by the program that reads or sets them."""
    return json.loads(VARIABLES.read_text())  # type: ignore[no-any-return]


def settings_by_alias() -> dict[str, list[str]]:
    """The settings that each variable of another system sets."""
    found: dict[str, list[str]] = {}
    for row in load().readable_settings()[0]:
        for alias in row["aliases"]:
            found.setdefault(alias, []).append(row["name"])
    return found


def variables_table() -> str:
    """The table of variables in Markdown."""
    return "\n".join(_variables_lines())


def _variables_lines() -> Iterator[str]:
    settings = settings_by_alias()
    yield "| variable | here |\n|---|---|"
    for group, names in variables().items():
        if group == BUILD:
            continue
        for name in names:
            if name in settings:
                text = f"sets {' and '.join(f'`{setting}`' for setting in settings[name])}"
            else:
                text = "set for ranks by launchers" if name in OF_LAUNCHERS else ""
                text = text or f"no effect: {WITHOUT_EFFECT[name]}"
            yield f"| `{name}` | {text} |"
    yield "| others, for a build of Horovod | no effect |"
    yield ""


def page() -> str:
    """The page with its tables as they should be."""
    text = PAGE.read_text()
    for name, content in (("variables", variables_table()), ("table", table())):
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{content}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
