"""The launcher's connection to agents: agents that do not read, and leftovers of agents that were killed."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_run_command import launch, script

from rdmacoll._launch import agent
from rdmacoll._launch.host_link import Frame, HostLink, local_command

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which agents make theirs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(agent.tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def links() -> Iterator[list[HostLink]]:
    made: list[HostLink] = []
    yield made
    for link in made:
        link.hang_up()
        link.close(10.0)


def started(links: list[HostLink], *commands: str) -> HostLink:
    """An agent that runs each command as a rank, one after the other."""
    link = HostLink("localhost", local_command(sys.executable))
    links.append(link)
    link.hello = json.loads(wait_for(link, agent.HELLO).payload)
    run(link, *commands)
    return link


def run(link: HostLink, *commands: str) -> None:
    for command in commands:
        words = ["sh", "-c", command]
        order = {"command": words, "folder": "/", "variables": {}, "secret": "s", "ranks": [[0, {}]]}
        link.send(agent.START, order)
        wait_for(link, agent.STDOUT if "sleep" in command else agent.EXIT)


def wait_for(link: HostLink, kind: bytes) -> Frame:
    end = time.monotonic() + DEADLINE_S
    (fd,) = (fd for fd, has_frames in link.streams().items() if has_frames)
    while select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
        for frame in link.read_frames(fd):
            if frame.kind == kind:
                return frame
        assert link.is_open
    raise AssertionError("the agent does not answer")


def pid_of(link: HostLink) -> int:
    return int((link.hello or {})["pid"])


def test_an_agent_that_does_not_read_holds_up_nobody(tmp_path: Path, links: list[HostLink]) -> None:
    """A frozen host must not stop the launcher, which serves the others."""
    go = tmp_path / "go"
    program = f"""
import os, sys, time
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
print(len(sys.stdin.buffer.read()), flush=True)
"""
    link = HostLink("localhost", [sys.executable, "-c", program])
    links.append(link)
    before = len(Path(agent.__file__).read_bytes())
    sender = threading.Thread(target=link.send, args=(agent.START, "x" * 1_000_000), daemon=True)
    sender.start()
    sender.join(DEADLINE_S)
    assert not sender.is_alive()
    assert link.has_unsent()
    go.touch()
    while link.has_unsent():
        assert select.select([], [link.input()], [], DEADLINE_S)[1]
        link.flush()
    link.hang_up()
    (fd,) = (fd for fd, has_frames in link.streams().items() if has_frames)
    assert select.select([fd], [], [], DEADLINE_S)[0]
    expected = len(f"{before}\n") + before + agent.FRAME.size + 1_000_002
    assert int(os.read(fd, 100)) == expected


def test_the_folder_of_a_killed_agent_is_removed_by_the_next_one(folder: Path, links: list[HostLink]) -> None:
    """It has the secret of the job. The folder of a living agent stays."""
    killed = started(links, "echo; sleep 600")
    (first,) = folder.iterdir()
    lasting = started(links, "echo; sleep 600")
    second = next(one for one in folder.iterdir() if one != first)
    os.kill(pid_of(killed), signal.SIGKILL)
    killed.close(10.0)
    other = started(links, "echo; sleep 600")
    assert not first.exists()
    assert second.exists()
    assert len(list(folder.iterdir())) == 2
    for link in (lasting, other):
        link.hang_up()
        link.close(10.0)
    assert list(folder.iterdir()) == []


def test_a_launcher_removes_the_folder_of_its_killed_agent(folder: Path) -> None:
    program = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    (folder / "program").mkdir()
    done = launch("-np", "1", sys.executable, script(folder / "program", program))
    assert done.returncode != 0
    assert [one.name for one in folder.iterdir()] == ["program"]


def test_an_agent_keeps_no_descriptors_of_ended_ranks(links: list[HostLink]) -> None:
    """An elastic job may start new workers for weeks."""
    link = started(links, "exit 3")
    descriptors = Path(f"/proc/{pid_of(link)}/fd")
    before = len(list(descriptors.iterdir()))
    run(link, *["exit 3"] * 4)
    assert len(list(descriptors.iterdir())) <= before
