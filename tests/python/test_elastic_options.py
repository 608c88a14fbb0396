"""The options of elastic jobs."""

from __future__ import annotations

from typing import Any

import pytest
from test_run_options import parsed  # noqa: F401


@pytest.mark.parametrize(
    ("words", "limits", "hosts"),
    [
        (["--min-np", "2"], (2, 2, 2), ["localhost:2"]),
        (["-np", "3", "--min-np", "2"], (2, 3, 3), ["localhost:3"]),
        (["-np", "3", "--min-np", "2", "--max-np", "4"], (2, 3, 4), ["localhost:4"]),
        (["-H", "a:2,b:2", "--min-np", "1"], (1, 1, 4), ["a:2", "b:2"]),
        (["-np", "2", "--host-discovery-script", "x"], (2, 2, 1 << 20), []),
        (["--min-np", "1", "--max-np", "8", "--host-discovery-script", "x"], (1, 1, 8), []),
    ],
)
def test_the_sizes_of_an_elastic_job(
    parsed: Any,  # noqa: F811
    words: list[str],
    limits: tuple[int, int, int],
    hosts: list[str],
) -> None:
    job, said, _ = parsed(*words, "python")
    assert said == ""
    found = job.elastic.limits
    assert (found.least, found.first, found.most) == limits
    assert [f"{host.name}:{host.slots}" for host in job.elastic.hosts] == hosts
    assert (found.timeout_s, found.resets, found.cooldown_s) == (600.0, None, None)
    assert job.variables["HOROVOD_ELASTIC"] == "1"


def test_the_other_limits_of_an_elastic_job(parsed: Any) -> None:  # noqa: F811
    words = ["--min-np", "1", "--elastic-timeout", "60", "--reset-limit", "0"]
    job, _, _ = parsed(*words, "--blacklist-cooldown-range", "5", "9", "python")
    found = job.elastic.limits
    assert (found.timeout_s, found.resets, found.cooldown_s) == (60.0, 0, (5.0, 9.0))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--min-np", "3", "-np", "2"], "--min-np 3, -np 2 and --max-np 3: none may be less than"),
        (["--min-np", "3", "--max-np", "2"], "--min-np 3, -np 3 and --max-np 2: none may be less than"),
        (["-np", "3", "--min-np", "2", "-H", "a:2"], "none may be less than the one before it."),
        (["--min-np", "1", "--mpi"], "--mpi: MPI ends a job with its first rank."),
        (["--host-discovery-script", "x", "-H", "a:2"], "--host-discovery-script names the hosts"),
        (["--min-np", "1", "--blacklist-cooldown-range", "9", "5"], "give a shortest and a longest time."),
    ],
)
def test_elastic_jobs_that_cannot_be(parsed: Any, words: list[str], said: str) -> None:  # noqa: F811
    job, text, code = parsed(*words, "python")
    assert (job, code) == (None, 2)
    assert said in " ".join(text.split())
