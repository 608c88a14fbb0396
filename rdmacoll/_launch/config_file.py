"""The configuration file of horovodrun: YAML with the sections that its documentation names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rdmacoll._base.external_values import file_text, shown
from rdmacoll._launch.horovodrun_options import TUNABLES
from rdmacoll.errors import ConfigError

_BY_KEY = {row.key: row for row in TUNABLES}


def read_config_file(path: str) -> dict[str, Any]:
    """The options that the file gives, by their names. Raises ConfigError."""
    try:
        import yaml
    except ImportError:
        raise ConfigError("--config-file needs a reader of YAML: pip install pyyaml") from None
    text = file_text(Path(path), "give a YAML file")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from None
    return options_of(content, path)


def options_of(content: object, path: str) -> dict[str, Any]:
    """The options of the file's content. Raises ConfigError for sections and names that are unknown."""
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} is no table of sections: see horovodrun's documentation.")
    found: dict[str, Any] = {}
    for section, entries in content.items():
        if section == "controller":
            name = str(entries).lower()
            if name not in ("gloo", "mpi"):
                raise ConfigError(f"{path}: controller is {shown(entries)}, not gloo or mpi.")
            found[f"use_{name}"] = True
        elif isinstance(entries, Mapping):
            found.update(_of_section(section, entries, path))
        elif entries is not None:
            raise ConfigError(f"{path}: {section} is {shown(entries)}, and no table.")
    return found


def _of_section(section: Any, entries: Mapping[Any, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in entries.items():
        row = _BY_KEY.get((section, name))
        if row is None:
            known = ", ".join(f"{one}.{entry}" for one, entry in _BY_KEY if one == section)
            raise ConfigError(f"{path}: {section}.{name} is unknown; known are {known or 'other sections'}.")
        if value is not None:
            yield row.name, row.checked(value, path)
