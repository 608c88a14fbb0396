"""The script that prints the hosts of an elastic job: what it may print, and what it may do wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_run_command import launch

from rdmacoll._launch import discovery
from rdmacoll._launch.discovery import HostDiscovery
from rdmacoll._launch.hosts import Host, discovered_hosts
from rdmacoll.errors import ConfigError


def test_the_hosts_of_a_script(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a:2\nb\n")
    script_of = HostDiscovery(f"cat {hosts}", 3)
    now = 0.0

    def polled() -> tuple[list[Host] | None, str]:
        """The answer of the next run of the script."""
        nonlocal now
        now += 2.0
        assert script_of.poll(now) == (None, "")
        assert script_of._process is not None
        script_of._process.wait(20)
        return script_of.poll(now)

    assert polled() == ([Host("a", 2), Host("b", 3)], "")
    assert polled() == (None, ""), "the hosts are the same"
    hosts.write_text("a:1\n")
    assert polled() == ([Host("a", 1)], "")
    hosts.write_text("what is this?\n")
    found, fault = polled()
    assert found is None
    assert "prints 'what is this?': print lines like node1:4" in fault
    assert polled() == (None, ""), "it is told once"
    hosts.unlink()
    assert "No such file or directory). The hosts stay as they were." in polled()[1]
    hosts.write_text("a:1\n")
    assert polled() == (None, ""), "they stayed"
    hosts.write_text("b:2\na:1\n")
    assert polled() == ([Host("b", 2), Host("a", 1)], "")
    hosts.write_text("a:1\nb:2\n")
    assert polled() == (None, ""), "a script may print them in any order"
    script_of.close()


def test_a_script_of_hosts_that_does_not_end_is_ended() -> None:
    lasting = HostDiscovery("sleep 600", None)
    lasting.poll(1.0)
    process = lasting._process
    assert process is not None
    assert lasting.poll(60.0) == (None, "")
    hosts, fault = lasting.poll(62.0)
    assert hosts is None
    assert "--host-discovery-script sleep 600: it did not end within 60 s, and was ended." in fault
    assert process.returncode is not None
    lasting.close()


def test_a_script_that_cannot_be_started_is_a_fault_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(discovery.subprocess, "Popen", refuse)
    refused = HostDiscovery("true", None)
    assert "true: it cannot be started (Resource temporarily unavailable)." in refused.poll(1.0)[1]
    assert refused.poll(3.0) == (None, "")
    refused.close()


def test_a_script_that_a_signal_ends_is_a_fault() -> None:
    killed = HostDiscovery("kill -9 $$", None)
    killed.poll(1.0)
    assert killed._process is not None
    killed._process.wait(20)
    assert "it was ended by signal 9." in killed.poll(2.0)[1]


def test_a_line_may_occur_twice_and_two_numbers_of_slots_are_refused() -> None:
    assert discovered_hosts("a:2\nb\na:2\nb\n", 1) == [Host("a", 2), Host("b", 1)]
    with pytest.raises(ConfigError, match="it prints a with 2 slots and with 4: print each host once"):
        discovered_hosts("a:2\na:4\n", None)


def test_a_job_whose_script_fails_at_first_ends_with_its_reason() -> None:
    done = launch("--min-np", "1", "--host-discovery-script", "/nowhere/hosts.sh", sys.executable, "-c", "1")
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert "--host-discovery-script /nowhere/hosts.sh: it ended with exit code 127 (" in last
    assert "not found" in last
