"""Judges the paths between ranks: pure functions from `Paths` to findings."""

from __future__ import annotations

import ipaddress
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from rdmacoll._abi.devices import GID_TYPE_TEXT, Gid
from rdmacoll._base.text import counted
from rdmacoll.cli.doctor_findings import Finding, note, ok, problem, size_text
from rdmacoll.cli.paths import RDMA, TCP, Path, Paths, RailFacts, RankFacts

RERUN = "mpirun ... rdmacoll doctor --pair"
_SLOW = 0.5  # share of the median of similar paths
_CUT_FACTOR = 4  # a cut in use that differs by this factor from the measured one is reported
# Parts of the engine's messages (cpp/transport/rdma): no acknowledgement, or no route in the kernel.
_NO_ANSWER, _NO_WAY = "no answer from the other end", "cannot be set up"
# Parts of the messages of the path test (cpp/probe/pair_probe.cc) after its two ends have met.
_IS_LATE, _LOSES = "was not done within", "the path loses data"
_UNREACHABLE = ("unreachable", "no route to host")


def judge(found: Paths) -> list[Finding]:
    """All findings, in the order of the page."""
    return [
        *without_rdma(found),
        *(finding for transport in (RDMA, TCP) for finding in broken(found, transport)),
        *(finding for transport in (RDMA, TCP) for finding in slow(found, transport)),
        *cut(found),
    ]


def without_rdma(found: Paths) -> Iterator[Finding]:
    """The ranks that cannot use RDMA, and why."""
    unable = [rank for rank in found.ranks if rank.obstacle]
    if not unable:
        return
    # The reason of a rank with devices explains more than that of a rank without.
    first = next((rank for rank in unable if rank.has_devices and not rank.is_off), unable[0])
    seen = f"not tested with {_ranks(unable)}. {first.text}: {first.obstacle.rstrip('.')}"
    why = "a rank that cannot use RDMA keeps all ranks on TCP"
    cure = "rdmacoll doctor on the host of that rank says what is missing"
    requesting = [rank for rank in found.ranks if rank.demanded]
    if requesting:
        asker = requesting[0]
        yield problem(
            "RDMA",
            f"{seen}; at {asker.text} {asker.demanded} it",
            why="a job in which a rank demands RDMA starts only where every rank can use it",
            cure=f"{cure}; or {asker.demand_cure}, to use TCP",
            check=RERUN,
        )
    elif not any(rank.has_devices and not rank.is_off for rank in found.ranks):
        yield ok("RDMA", seen, why=why, check=RERUN)
    else:
        yield problem("RDMA", seen, why=why, cure=cure, check=RERUN)


def _ranks(ranks: Sequence[RankFacts]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank.rank) for rank in ranks)


def broken(found: Paths, transport: str) -> Iterator[Finding]:
    """Paths that carry nothing. A rank without any working path is one finding; each other path is one
    finding."""
    paths = found.over(transport)
    failed = [path for path in paths if not path.is_ok]
    if not paths:
        return
    if not failed:
        seen = f"data arrives intact over {counted(len(paths), 'path')}, both ways"
        yield ok(transport, seen, why="every two ranks may have data for each other", check=RERUN)
    works = {rank for path in paths if path.is_ok for rank in path.ranks}
    reported: set[int] = set()
    for path in failed:
        cut_off = [rank for rank in path.ranks if rank not in works]
        # If one end of the path reaches other ranks and the other end reaches none, the fault is at the
        # latter.
        isolated = cut_off[0] if len(cut_off) == 1 and len(found.ranks) > 2 else None
        if isolated is not None and isolated in reported:
            continue
        if isolated is not None:
            reported.add(isolated)
        yield _broken(found, path, isolated)


def _broken(found: Paths, path: Path, isolated: int | None) -> Finding:
    low, high = (found.ranks[rank] for rank in path.ranks)
    every = f"no path of rank {isolated} works. " if isolated is not None else ""
    seen = f"{every}{low.text} and {high.text}: {path.causes()}"
    name = f"{path.transport} {low.rank}-{high.rank}"
    is_tcp = path.transport == TCP
    why, cure, check = _tcp_cause(low, high, path.causes()) if is_tcp else _rdma_cause(found, path)
    return problem(name, seen, why=why, cure=cure, check=check)


def _tcp_cause(low: RankFacts, high: RankFacts, causes: str) -> tuple[str, str, str]:
    if _IS_LATE in causes:
        return (
            "slow link: the two ranks have met, so no port is blocked, but the data did not arrive in time",
            f"{_load_of(low, high)}; if the path is merely long: --timeout 300",
            f"ping {high.host} on {low.host}; then {RERUN}",
        )
    if _LOSES in causes:
        return (
            "the two ranks have met, so no port is blocked, but large packets are lost on the way",
            "give both ends, and what is between them, the same MTU (ip link set INTERFACE mtu 1500)",
            f"ping -M do -s 1472 {high.host} on {low.host}; then {RERUN}",
        )
    if low.host == high.host:
        return (
            "every job needs TCP between all ranks, with RDMA too: to meet, and to notice failures",
            "see that lo is up (ip link set lo up), and that no firewall of this host closes its own ports; "
            "or unset RDMACOLL_INTERFACE",
            f"ip addr show lo; ss -ltnp; then {RERUN}",
        )
    return (
        "every job needs TCP between all ranks, with RDMA too: to meet, and to notice failures",
        "open the ports between the two hosts in the firewall, or name a network that both have with "
        "RDMACOLL_INTERFACE (eth0, or 10.1.0.0/16)",
        f"ping {high.host} on {low.host}; then {RERUN}",
    )


def _rdma_cause(found: Paths, path: Path) -> tuple[str, str, str]:
    low, high = (found.ranks[rank] for rank in path.ranks)
    if not low.rails or not high.rails:  # the message of the path says all that is known
        return "RDMA is used where all ranks can", "see the sentence", RERUN
    low_rail, high_rail = low.rails[0], high.rails[0]
    check = _check(low, low_rail, high_rail)
    if _kind(low_rail.gid) != _kind(high_rail.gid):
        wrong, other = _outlier(found, low, high)
        return (
            f"wrong GID: {low.text} uses {low_rail.gid.text()} and {high.text} uses {high_rail.gid.text()}; "
            "a port with one kind of GID ignores packets of the other kind",
            _other_gid(wrong, other.rails[0]),
            check,
        )
    is_elsewhere = _network(low_rail.gid) != _network(high_rail.gid)
    if is_elsewhere or any(text in path.causes() for text in _UNREACHABLE):
        networks = ", which are of different networks" if is_elsewhere else ""
        return (
            f"missing route: there is no way from {low_rail.gid.gid} to {high_rail.gid.gid}{networks}, or it "
            "does not carry RoCE (UDP port 4791)",
            "add the route on both hosts (ip route get ADDRESS from ADDRESS shows the one in use), or name "
            "ports of one network with RDMACOLL_DEVICE",
            check,
        )
    if low.host == high.host and (_NO_WAY in path.causes() or _NO_ANSWER in path.causes()):
        return (
            f"{low_rail.text} and {high_rail.text} are of one host, and the adapter does not carry packets "
            "back to it: two of its ports lie in different networks, or the port is down",
            "name one port for all ranks of the host (RDMACOLL_DEVICE), or let shared memory carry the data "
            "there (leave RDMACOLL_TRANSPORT unset)",
            f"ibv_devinfo on {low.host}; then {RERUN}",
        )
    if _NO_WAY in path.causes():
        return (
            f"nobody answers at {high_rail.gid.gid} or at {low_rail.gid.gid} on the link of the other: a "
            "link or a switch port is down, VLANs differ, or a switch keeps the two apart",
            f"look at the links of {low_rail.text} and of {high_rail.text}, and at the switch between them",
            check,
        )
    if _NO_ANSWER in path.causes():
        return (
            "the packets leave and nothing comes back: a link or a switch port is down, VLANs differ, the "
            "route is missing, or a firewall drops RoCE (UDP port 4791)",
            f"look at the links of {low_rail.text} and of {high_rail.text}, at the route and the firewall "
            "between them",
            check,
        )
    return "RDMA is used where all paths work", "follow the message", check


def _kind(gid: Gid) -> str:
    """The kind of a GID. Both ends of a path must have the same."""
    address = "IPv4" if gid.is_ipv4 else "link-local" if gid.is_link_local else "IPv6"
    return f"{GID_TYPE_TEXT.get(gid.type, gid.type)} {address}"


def _network(gid: Gid) -> object:
    """The probable network of a GID. Its prefix is not known here: /24 for IPv4, /64 for IPv6."""
    address = ipaddress.IPv6Address(gid.gid)
    mapped = address.ipv4_mapped
    return ipaddress.ip_network(f"{mapped}/24" if mapped else f"{address}/64", strict=False)


def _outlier(found: Paths, low: RankFacts, high: RankFacts) -> tuple[RankFacts, RankFacts]:
    """(the rank with the rarer kind of GID, the other rank)."""
    kinds = Counter(_kind(rank.rails[0].gid) for rank in found.ranks if rank.rails)

    def standing(rank: RankFacts) -> tuple[int, bool, bool]:
        gid = rank.rails[0].gid
        return kinds[_kind(gid)], gid.type == "roce_v2", gid.is_ipv4

    return (high, low) if standing(high) < standing(low) else (low, high)


def _other_gid(wrong: RankFacts, like: RailFacts) -> str:
    fitting = [gid for gid in wrong.rails[0].gids if _kind(gid) == _kind(like.gid)]
    if fitting:
        chosen = fitting[0]
        setting = f"RDMACOLL_GID_INDEX={chosen.index} at {wrong.text} ({chosen.text()})"
        return f"{setting}, or leave it unset everywhere"
    return (
        f"{wrong.rails[0].text} of {wrong.text} has no GID of the kind {_kind(like.gid)}: give its interface "
        "an address of the network of the other ranks"
    )


def _check(low: RankFacts, low_rail: RailFacts, high_rail: RailFacts) -> str:
    address = ipaddress.IPv6Address(high_rail.gid.gid)
    interface = f" -I {low_rail.gid.interface}" if low_rail.gid.interface else ""
    return f"ping{interface} {address.ipv4_mapped or address} on {low.host}; then {RERUN}"


def slow(found: Paths, transport: str) -> Iterator[Finding]:
    """Directions of paths that are far slower than similar paths: those between hosts, or those within
    one."""
    for is_within in (False, True):
        like = [
            path
            for path in found.over(transport)
            if path.is_ok and (_host(found, path, 0) == _host(found, path, 1)) == is_within
        ]
        if not like:
            continue
        usual = statistics.median(speed for path in like for speed, _ in path.directions())
        for path in like:
            if min(path.forward, path.back) < _SLOW * usual:
                yield _slow(found, path, usual)


def _host(found: Paths, path: Path, end: int) -> str:
    return found.ranks[path.ranks[end]].host


def _slow(found: Paths, path: Path, usual: float) -> Finding:
    low, high = (found.ranks[rank] for rank in path.ranks)
    return note(
        f"{path.transport} {low.rank}-{high.rank}",
        f"slow link: from {low.text} to {high.text} {path.forward:.3g} GB/s, and back {path.back:.3g}, where "
        f"{usual:.3g} GB/s are usual (the median of its like)",
        why="all ranks wait for the slowest path",
        cure=_load_of(low, high),
        check=f"mpirun -np 2 --host {low.host},{high.host} rdmacoll bench pair --transport "
        f"{path.transport.lower()}",
    )


def _load_of(low: RankFacts, high: RankFacts) -> str:
    """The advice for a slow path."""
    if low.host == high.host:
        return (
            "look for other programs on the host (top), and to which cores its ranks are bound (mpirun "
            "--report-bindings)"
        )
    return (
        "compare width and speed of the links (ibstat, ethtool, lspci -vv), cables, the MTU, and the other "
        "programs on both hosts"
    )


def cut(found: Paths) -> Iterator[Finding]:
    """The largest size for which a copy is cheaper than a round trip, as measured, beside the one in use."""
    measured, used = found.cut_bytes(), found.acc_size
    if measured is None or used is None:
        return
    source = (
        f"TF_RDMA_ACC_SIZE={used} is set and is obeyed"
        if found.acc_size_is_set
        else f"the engine takes {size_text(used)}, from a short sample when two ranks meet"
    )
    seen = f"eager is faster up to {size_text(measured)} (measured, the median of the pairs); {source}"
    why = (
        "below the cut a message is copied, above it the receiver is asked first: a wrong cut costs "
        "small and middle tensors time"
    )
    check = "mpirun -np 2 rdmacoll bench pair --transport rdma --sizes 1K:128K"
    if measured <= used * _CUT_FACTOR and used <= measured * _CUT_FACTOR:
        yield ok("eager cut", seen, why=why, check=check)
        return
    yield note(
        "eager cut",
        seen,
        why=why,
        cure=f"TF_RDMA_ACC_SIZE={measured}",
        check=check,
    )
