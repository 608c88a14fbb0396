"""`rdmacoll doctor --pair` and `rdmacoll bench pair` on RDMA devices."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ranks import run

from rdma.scene import SMALL_POOL, main, own_device, shell

_COMMAND = """
import os, sys
from rdmacoll.cli import main
sys.argv[1:] = {arguments} + ["--json", os.environ["RANKS_FOLDER"] + "/report-0.json"]
main.main()
"""


def _play(
    *arguments: str, ranks: int, env: Mapping[str, str] | None = None, odd: Mapping[str, str] | None = None
) -> tuple[int | None, dict[str, Any], str]:
    """Runs a command of rdmacoll on all ranks. Returns rank 0's exit code, its JSON and all output.

    odd: environment variables of the last rank alone.
    """
    env_of = own_device(ranks)
    env_of[ranks - 1].update(odd or {})
    program = _COMMAND.format(arguments=list(arguments))
    outcome = run(program, ranks, env={**SMALL_POOL, **(env or {})}, env_of=env_of, deadline_s=200)
    assert outcome.reports[0] is not None, outcome.text()
    return outcome.ranks[0].code, outcome.reports[0], outcome.text()


def _paths(found: dict[str, Any], transport: str) -> dict[tuple[int, ...], dict[str, Any]]:
    return {tuple(path["ranks"]): path for path in found["paths"] if path["transport"] == transport}


def _has_numbers(path: dict[str, Any]) -> bool:
    return bool(min(path["latency_us"], path["forward"], path["back"], path["both"]) > 0)


@contextlib.contextmanager
def _apart(*ports: str) -> Iterator[None]:
    """Isolates these hosts from each other at the switch. They still reach all other hosts."""
    for port in ports:
        shell(f"ip link set {port} type bridge_slave isolated on")
    try:
        yield
    finally:
        for port in ports:
            shell(f"ip link set {port} type bridge_slave isolated off")


def check_two_ranks_have_a_path_over_rdma_and_one_over_tcp() -> None:
    code, found, text = _play("doctor", "--pair", ranks=2)
    assert code == 0, text
    for transport in ("RDMA", "TCP"):
        assert list(_paths(found, transport)) == [(0, 1)], text
        assert _has_numbers(_paths(found, transport)[0, 1]), text
        assert f"{transport} latency one way" in text
    cut = _paths(found, "RDMA")[0, 1]["cut"]
    assert len(cut["eager_us"]) == len(cut["rendezvous_us"]) == len(cut["sizes"]) == 7
    assert found["measured_acc_size"] == cut["eager_bytes"]
    # The start measures the cut: a power of 2 from the documented default to the largest message.
    assert found["acc_size"] in [8192, 16384, 32768, 65536], text
    assert "the engine takes " in " ".join(text.split()), text


def check_a_cut_that_is_set_is_shown_beside_the_measured_one() -> None:
    _, found, text = _play("doctor", "--pair", ranks=2, env={"TF_RDMA_ACC_SIZE": "4096"})
    assert found["acc_size"] == 4096
    assert "TF_RDMA_ACC_SIZE=4096 is set and is obeyed" in " ".join(text.split()), text


def check_bench_pair_measures_over_rdma() -> None:
    arguments = ["--transport", "rdma", "--sizes", "8:256K", "--repeat", "2", "--burst", "0.005"]
    code, found, text = _play("bench", "pair", *arguments, ranks=2)
    assert code == 0, text
    assert found["transport"] == "rdma"
    assert [row["bytes"] for row in found["rows"]] == [8 << power for power in range(16)]
    assert all(row["latency_us"] > 0 and row["GB_per_s_forward"] > 0 for row in found["rows"])


def check_a_single_path_that_fails_is_named_and_the_others_have_numbers() -> None:
    with _apart("b2", "b3"):
        code, found, text = _play("doctor", "--pair", ranks=3)
    assert code == 1, text
    paths = _paths(found, "RDMA")
    assert _has_numbers(paths[0, 1])
    assert _has_numbers(paths[0, 2])
    assert all(_has_numbers(path) for path in _paths(found, "TCP").values())
    problems = " ".join(paths[1, 2]["problems"])
    for part in ("rank 1 (", "rank 2 (", "rxe2 port 1", "rxe3 port 1", "::ffff:10.9.0.2", "::ffff:10.9.0.3"):
        assert part in problems, problems
    (finding,) = (finding for finding in found["findings"] if finding["state"] == "problem")
    assert finding["name"] == "RDMA 1-2"
    assert "are of one host, and the adapter does not carry packets back" in finding["why"], finding


def check_a_slow_link_is_named_with_both_values() -> None:
    shell("tc qdisc add dev v3 root netem limit 10000 rate 200mbit")  # host 3 sends at most 0.025 GB/s
    try:
        code, found, text = _play("doctor", "--pair", "--timeout", "100", ranks=3)
    finally:
        shell("tc qdisc del dev v3 root")
    assert code == 0, text  # a slow link is a note, since a training works
    slow = {finding["name"]: finding["seen"] for finding in found["findings"] if finding["state"] == "note"}
    for other in (0, 1):
        path = _paths(found, "RDMA")[other, 2]
        assert path["back"] < 0.025 * 1.2, text
        assert f"and back {path['back']:.3g}, where" in slow[f"RDMA {other}-2"], text


def check_a_wrong_gid_is_named_with_the_right_one() -> None:
    code, found, text = _play("doctor", "--pair", ranks=3, odd={"RDMACOLL_GID_INDEX": "0"})
    assert code == 1, text
    assert _has_numbers(_paths(found, "RDMA")[0, 1])
    (finding,) = (finding for finding in found["findings"] if finding["state"] == "problem")
    assert "no path of rank 2 works" in finding["seen"], finding
    assert finding["why"].startswith("wrong GID: "), finding
    assert "RDMACOLL_GID_INDEX=1 at rank 2 (" in finding["cure"], finding


def check_a_missing_route_is_called_that() -> None:
    # Rank 1 has an address of another network, and rank 0 has no route to it. The kernel then looks for the
    # address on its own link.
    shell("ip addr add 10.8.0.2/32 dev v2")
    shell("ip rule add pref 21 from 10.9.0.1 to 10.8.0.0/24 unreachable")
    try:
        with _apart("b1", "b2"):
            index = str(_gid_index("rxe2", "0000:0000:0000:0000:0000:ffff:0a08:0002"))
            code, found, text = _play("doctor", "--pair", ranks=2, odd={"RDMACOLL_GID_INDEX": index})
    finally:
        shell("ip rule del pref 21")
        shell("ip addr del 10.8.0.2/32 dev v2")
    assert code == 1, text
    (finding,) = (finding for finding in found["findings"] if finding["state"] == "problem")
    assert finding["why"].startswith("missing route: "), finding
    assert "::ffff:10.8.0.2" in finding["why"], finding


def _gid_index(device: str, gid: str) -> int:
    """Returns the index of a new address's GID. Waits until the kernel has added the GID."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for entry in sorted(Path(f"/sys/class/infiniband/{device}/ports/1/gids").iterdir()):
            with contextlib.suppress(OSError):  # an entry that is not set
                if entry.read_text().strip() == gid:
                    return int(entry.name)
        time.sleep(0.05)
    raise AssertionError(f"{device} has no GID {gid} after 10 s")


if __name__ == "__main__":
    main(globals())
