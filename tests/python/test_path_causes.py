"""`rdmacoll doctor --pair` names the right cause and a fitting cure for a path that fails or is slow."""

from __future__ import annotations

import pytest
from test_paths import NO_ANSWER, failing, only_problem, rank, v4, world

from rdmacoll.cli.doctor_findings import OK
from rdmacoll.cli.path_findings import judge
from rdmacoll.cli.paths import RDMA, TCP


@pytest.mark.parametrize(
    ("sentence", "cause", "cure"),
    [
        ("rank 2 (node2, pid 3) stopped answering: connection refused", "every job needs TCP", "firewall"),
        ("the test of the path to rank 2 was not done within 30 s (in a burst)", "slow link", "ethtool"),
        (
            "nothing moved for 10 s, though both ends live: the path loses data.",
            "large packets",
            "MTU",
        ),
    ],
)
def test_a_slow_or_lossy_path_is_told_from_a_blocked_port(sentence, cause, cure):
    found = world(*(rank(number, v4(3, number)) for number in range(3)))
    finding = only_problem(failing(found, TCP, (0, 2), sentence))
    assert cause in finding.why
    assert cure in finding.cure
    assert ("blocked" in finding.why) == ("firewall" not in finding.cure)


@pytest.mark.parametrize("transport", [TCP, RDMA])
@pytest.mark.parametrize("sentence", [None, "rank 1 (node0) stopped answering: refused", "NO_ANSWER", "late"])
def test_paths_of_one_host_never_speak_of_cables(transport, sentence):
    ranks = [rank(number, v4(3, number), host="node0") for number in range(3)]
    slow = {(0, 1): 1.0}
    found = world(*ranks, speed=lambda a, b: slow.get((a, b), 10.0) if sentence is None else 10.0)
    words = {"NO_ANSWER": NO_ANSWER, "late": "it was not done within 30 s"}
    if sentence is not None:
        found = failing(found, transport, (0, 1), words.get(sentence, sentence))
    findings = [finding for finding in judge(found) if finding.state != OK]
    assert findings
    for finding in findings:
        text = f"{finding.why} {finding.cure} {finding.check}"
        assert not any(word in text for word in ("cable", "switch", "two hosts", "both hosts", "ethtool")), (
            text
        )
