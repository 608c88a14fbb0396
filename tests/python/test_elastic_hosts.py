"""Hosts of an elastic job that do not answer, that cannot be reached, and that leave."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_run_command import launch

from rdmacoll._launch import elastic_job
from rdmacoll._launch.elastic_job import ElasticJob
from rdmacoll._launch.host_link import HostLink
from rdmacoll._launch.hosts import Host
from rdmacoll._launch.job import ElasticOptions, JobOptions
from rdmacoll._launch.membership import Limits
from rdmacoll.errors import ConfigError


class SilentJob(ElasticJob):
    """A job whose agents never answer."""

    def __init__(self, hosts: str) -> None:
        limits = Limits(least=1, most=9, first=1, timeout_s=600.0)
        listed = [Host(name, int(slots)) for name, _, slots in (one.partition(":") for one in hosts.split())]
        super().__init__(
            JobOptions(command=["true"], slots=[], environ={}, elastic=ElasticOptions(limits, listed))
        )
        self._members.set_hosts(listed)
        self.linked: list[str] = []

    def _link(self, host: str) -> None:
        self.linked.append(host)
        self._links[host] = HostLink(host, ["sleep", "600"])

    def end(self) -> None:
        for link in list(self._links.values()):
            self._drop(link, 0.0)
        self._selector.close()


@pytest.fixture
def job() -> Iterator[SilentJob]:
    made = SilentJob("a:2")
    yield made
    made.end()


def test_a_host_whose_agent_does_not_end_a_worker_is_lost(
    job: SilentJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A frozen host would hold up the job for ever."""
    job._link("a")
    job._start_worker("a", job._links["a"])
    job._end_worker(0)
    job._end_late_workers()
    assert list(job._links) == ["a"]
    monkeypatch.setattr(elastic_job, "_END_S", -1.0)
    job._end_late_workers()
    assert list(job._links) == []
    assert "the host was lost (its agent has not ended worker 0 within" in job._ended[0].reason()
    assert "rdmacoll run: a is lost: its agent has not ended worker 0 within" in capsys.readouterr().err
    job._end_late_workers()


def test_the_reason_of_a_late_worker_is_the_right_one(
    job: SilentJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others have lost it, and wait for it longer than --elastic-timeout, which is short."""
    clock = [0.0]
    monkeypatch.setattr(elastic_job.time, "monotonic", lambda: clock[0])
    job._link("a")
    for number in range(2):
        job._start_worker("a", job._links["a"])
        job._members.ask(number, 20000, 0.0)
    assert job._members.next_world(0.0, 1.0) is not None
    job._members.ask(0, 20000, 0.0, lost=1)
    clock[0] = elastic_job.LOST_S + 1
    job._end_late_workers()
    assert "worker 1 (a) is ended: others have lost it 30 s ago, and it" in capsys.readouterr().err
    job._told_to_end.clear()
    job._members.workers[1].lost_at = clock[0] = 601.0
    job._end_late_workers()
    assert "worker 1 (a) is ended: others wait for it for 600 s (--elastic-" in capsys.readouterr().err


def test_a_host_that_does_not_answer_is_lost_once(job: SilentJob) -> None:
    job._start_workers()
    job._linked_at["a"] -= 1000.0
    job._start_workers()
    job._start_workers()
    assert job.linked == ["a"]
    assert list(job._links) == []
    assert [one for one in job._losses if one.startswith("a is lost: no answer within")] == job._losses


def test_a_host_to_which_no_connection_can_be_started_is_lost(
    job: SilentJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh may be missing, or the launcher's host may have no process left."""

    def refuse(host: str) -> None:
        raise ConfigError(f"{host}: cannot start ssh: No such file or directory.")

    monkeypatch.setattr(job, "_link", refuse)
    job._start_workers()
    job._start_workers()
    assert job._losses == ["a is lost: cannot start ssh: No such file or directory."]
    job._failure = job._members.failure(0.0)
    assert job._message() == (
        "rdmacoll run: the job has ended: --min-np is 1, and there are 0 workers. "
        "a is lost: cannot start ssh: No such file or directory."
    )


def test_the_agent_of_a_host_that_left_is_ended(job: SilentJob) -> None:
    job._link("a")
    job._links["a"].hello = {"pid": 1}
    job._start_worker("a", job._links["a"])
    job._members.set_hosts([])
    job._leave_hosts()
    assert list(job._links) == ["a"], "it has a worker"
    job._lose_ranks("a", "as if it had ended")
    job._leave_hosts()
    assert list(job._links) == []


def test_the_last_line_names_a_host_that_was_never_reached(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'no route to it' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    program = "import rdmacoll; rdmacoll.init()"
    words = ["-H", "other-host:2", "--min-np", "2", sys.executable, "-c", program]
    done = launch(*words, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "rdmacoll run: the job has ended: --min-np is 2, and there are 0 workers. other-host is lost: "
        'no route to it. Try "ssh other-host true": it must work without a password.'
    )
