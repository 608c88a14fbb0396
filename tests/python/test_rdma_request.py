"""`rdmacoll doctor` and the engine agree on whether the settings demand RDMA or turn it off."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import clean_environment
from test_doctor import MLX5, PLAIN, VERBS, engine_sees, found, settings, with_devices

from rdmacoll._abi.devices import SYSFS, View
from rdmacoll.cli import doctor
from rdmacoll.cli.doctor_facts import Kernel, Limit, Machine, Memory, Settings
from rdmacoll.cli.rdma_request import RdmaRequest, rdma_request

HAS_DEVICES = any(Path("/sys/class/infiniband").glob("*"))
NOBODY_HAS = "nonesuch_7"

# Variables, and the settings that turn RDMA off or demand it. None: the engine refuses the variables.
REQUESTS: list[tuple[dict[str, str], RdmaRequest | None]] = [
    ({}, RdmaRequest()),
    ({"RDMACOLL_DEVICE": "auto", "RDMACOLL_TRANSPORT": "auto"}, RdmaRequest()),
    ({"RDMACOLL_DEVICE": " "}, RdmaRequest()),
    ({"RDMACOLL_DEVICE": NOBODY_HAS}, RdmaRequest(demands=("RDMACOLL_DEVICE=nonesuch_7",))),
    ({"TF_RDMA_DEV_NAME": NOBODY_HAS}, RdmaRequest(demands=("TF_RDMA_DEV_NAME=nonesuch_7",))),
    (
        {"RDMA_DEVICE": NOBODY_HAS, "TF_RDMA_ENABLED": "1"},
        RdmaRequest(demands=("RDMA_DEVICE=nonesuch_7", "TF_RDMA_ENABLED=true")),
    ),
    ({"RDMACOLL_RDMA": "true"}, RdmaRequest(demands=("RDMACOLL_RDMA=true",))),
    ({"TF_RDMA_ENABLED": "off"}, RdmaRequest(off="TF_RDMA_ENABLED=false")),
    ({"TF_RDMA_ENABLED": "0", "TF_RDMA_DEV_NAME": NOBODY_HAS}, RdmaRequest(off="TF_RDMA_ENABLED=false")),
    ({"TF_RDMA_ENABLED": "0", "RDMACOLL_RDMA": "1"}, RdmaRequest(demands=("RDMACOLL_RDMA=true",))),
    ({"TF_RDMA_ENABLED": "0", "RDMACOLL_TRANSPORT": "tcp"}, RdmaRequest(off="TF_RDMA_ENABLED=false")),
    ({"RDMACOLL_TRANSPORT": "TCP"}, RdmaRequest(off="RDMACOLL_TRANSPORT=tcp")),
    (
        {"RDMACOLL_TRANSPORT": "shm, tcp", "TF_RDMA_ENABLED": "1"},
        RdmaRequest(off="RDMACOLL_TRANSPORT=shm,tcp"),
    ),
    ({"RDMACOLL_TRANSPORT": "tcp", "RDMA_DEVICE": NOBODY_HAS}, RdmaRequest(off="RDMACOLL_TRANSPORT=tcp")),
    ({"RDMACOLL_TRANSPORT": "tcp,rdma"}, RdmaRequest(demands=("RDMACOLL_TRANSPORT=tcp,rdma",))),
    ({"RDMACOLL_TRANSPORT": "rdma", "TF_RDMA_ENABLED": "no"}, None),
]

# Without RDMA devices, a world of one starts only if the settings do not demand RDMA.
ASK_ENGINE = """
import json, os, sys
import rdmacoll
from rdmacoll.cli import doctor_gather
from rdmacoll.cli.rdma_request import rdma_request
from rdmacoll._abi.library import load
told = []
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    try:
        request = rdma_request(doctor_gather.settings(load()))
        request = [request.off, request.demands]
    except rdmacoll.ConfigError:
        request = None
    try:
        rdmacoll.init()
        rdmacoll.shutdown()
        starts = True
    except rdmacoll.ConfigError as error:
        starts = False
    told.append([request, starts])
    for name in variables:
        del os.environ[name]
print(json.dumps(told))
"""


def test_the_rule_is_the_engines() -> None:
    variables = json.dumps([row[0] for row in REQUESTS])
    done = subprocess.run(
        [sys.executable, "-c", ASK_ENGINE, variables],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout.splitlines()[-1])
    for (given, expected), (request, starts) in zip(REQUESTS, reported):
        assert request == (None if expected is None else [expected.off, list(expected.demands)]), given
        if not HAS_DEVICES:
            assert starts == (expected is not None and not expected.demands), given


def written(settings: Settings, **variables: str) -> Settings:
    """Returns the settings as if these variables had set them."""
    rows = [
        {**row, "given": f"{variables[row['name']]}={row['value']}"} if row["name"] in variables else row
        for row in settings.rows
    ]
    return replace(settings, rows=tuple(rows))


OFF = [
    written(settings(RDMACOLL_RDMA="false", RDMACOLL_DEVICE="mlx5_0"), RDMACOLL_RDMA="TF_RDMA_ENABLED"),
    settings(RDMACOLL_TRANSPORT="shm,tcp", RDMACOLL_DEVICE="mlx5_0", RDMACOLL_RDMA="true"),
]
# Machines on which RDMA does not work, for every cause that is a problem when RDMA is requested.
UNABLE: list[Machine] = [
    replace(PLAIN, kernel=Kernel(adapters=("0000:3b:00.0",))),
    with_devices(replace(MLX5, ports=MLX5.ports[1:])),
    with_devices(views=(View(SYSFS, (MLX5,)), View("pyverbs"))),
    with_devices(MLX5, kernel=Kernel(("mlx5_ib",))),
    with_devices(MLX5, kernel=replace(VERBS, verbs_files=())),
    with_devices(MLX5, kernel=replace(VERBS, libibverbs="no such file")),
    with_devices(MLX5, memory=Memory(Limit(65536, 65536))),
    engine_sees(MLX5, refusal="no GID 9", changed={"memory": Memory(Limit(65536, 65536))}),
]


def problems(machine: Machine) -> list[Any]:
    return [finding for finding in doctor.examine(machine) if finding.state == "problem"]


@pytest.mark.parametrize("machine", UNABLE)
def test_what_is_turned_off_has_no_problems(machine: Machine) -> None:
    assert problems(machine)
    for each in OFF:
        assert problems(replace(machine, settings=each)) == []


def test_what_is_turned_off_is_not_chosen_and_pins_nothing() -> None:
    tight = {"memory": Memory(Limit(65536, 65536))}
    for each, said in zip(OFF, ("TF_RDMA_ENABLED=false", "RDMACOLL_TRANSPORT=shm,tcp")):
        machine = replace(engine_sees(MLX5, changed=tight), settings=each)
        assert [finding.seen for finding in found(machine, "choice")] == [f"none: {said} turns RDMA off"]
        (memory,) = found(machine, "locked memory")
        assert (memory.state, said in memory.seen) == ("ok", True)


def test_the_cure_names_the_variable_that_was_given() -> None:
    named = written(settings(RDMACOLL_DEVICE="nothere"), RDMACOLL_DEVICE="TF_RDMA_DEV_NAME")
    (missing,) = found(replace(PLAIN, settings=named), "devices")
    (refused,) = found(engine_sees(MLX5, refusal="it is not there", changed={"settings": named}), "choice")
    for finding in (missing, refused):
        assert "TF_RDMA_DEV_NAME=nothere demands" in finding.seen + finding.why
        assert "unset TF_RDMA_DEV_NAME" in finding.cure
        assert "RDMACOLL_DEVICE" not in " ".join(finding.fields().values())
    both = rdma_request(settings(RDMACOLL_DEVICE="nothere", RDMACOLL_RDMA="true"))
    assert both.cure == "unset RDMACOLL_DEVICE and RDMACOLL_RDMA"
