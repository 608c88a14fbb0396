"""The hosts of a job of LSF, from its variables. Pure, but for reading a host file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rdmacoll._base.external_values import file_text, shown
from rdmacoll.errors import ConfigError

JOB = "LSB_JOBID"
_HOSTS, _HOST_FILE = "LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE"


def hosts_of_job(variables: Mapping[str, str]) -> tuple[str, list[tuple[str, int]]]:
    """The variable that names the hosts, and these with their slots, in the job's order.

    ("", []) outside of a job. Raises ConfigError for a variable that cannot be read.

    >>> hosts_of_job({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node1 4 node2 2"})
    ('LSB_MCPU_HOSTS', [('node1', 4), ('node2', 2)])
    """
    if not variables.get(JOB):
        return "", []
    if text := variables.get(_HOSTS, "").strip():
        return _HOSTS, _pairs(text)
    if path := variables.get(_HOST_FILE, "").strip():
        return _HOST_FILE, _lines(path)
    return "", []


def _pairs(text: str) -> list[tuple[str, int]]:
    words = text.split()
    names, counts = words[::2], words[1::2]
    if len(names) != len(counts) or not all(one.isascii() and one.isdigit() for one in counts):
        raise ConfigError(f'{_HOSTS}={shown(text)}: LSF writes "node1 4 node2 4". Name hosts with -H.')
    return _merged([(name, int(count)) for name, count in zip(names, counts)])


def _lines(path: str) -> list[tuple[str, int]]:
    names = file_text(Path(path), f"{_HOST_FILE} names it. Name hosts with -H").split()
    if not names:
        raise ConfigError(f"{path} ({_HOST_FILE}) names no hosts. Name hosts with -H.")
    return _merged([(name, 1) for name in names])


def _merged(hosts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    slots: dict[str, int] = {}
    for name, count in hosts:
        slots[name] = slots.get(name, 0) + count
    return [(name, count) for name, count in slots.items() if count > 0]
