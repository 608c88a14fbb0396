"""The cache: one process makes each entry, and an entry is complete or absent. No guest is needed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from rdma import cache
from rdma.cache import GuestError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDMACOLL_CACHE", str(tmp_path))
    return tmp_path / "guest"


def hold(path: str) -> None:
    os.environ["RDMACOLL_CACHE"] = path
    with cache.lock("thing", "nobody"), cache.workplace("thing") as place:
        (place / "half").touch()
        time.sleep(60)


def test_a_second_maker_waits_and_says_so_and_tidies_up_after_one_that_was_killed(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache, "_PROGRESS_EVERY_S", 0.1)
    first = multiprocessing.get_context("fork").Process(target=hold, args=(str(tmp_path),))
    first.start()
    assert first.pid is not None
    while not list(own_cache.glob("thing.making-*/half")):
        time.sleep(0.01)
    begin = time.monotonic()

    def progress() -> str:
        assert first.pid is not None
        if time.monotonic() - begin > 0.5:
            os.kill(first.pid, signal.SIGKILL)
        return ", half made"

    with cache.lock("thing", "a thing", progress), cache.workplace("thing"):
        assert not list(own_cache.glob("thing.making-*/half"))
    first.join()
    assert "guest: waiting for a thing, " in (logged := capfd.readouterr().err)
    assert "half made" in logged
    assert not list(own_cache.glob("thing.making-*"))


def test_an_interrupted_maker_leaves_nothing(own_cache: Path) -> None:
    def interrupted() -> None:
        with cache.workplace("thing") as place:
            (place / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(own_cache.iterdir())


def test_what_is_missing_or_fails_is_named() -> None:
    with pytest.raises(GuestError, match="no-such-program is missing: make setup-rdma installs it"):
        cache.call(["no-such-program"])
    with pytest.raises(GuestError, match=r"sh -c .* failed \(3\): why"):
        cache.call(["sh", "-c", "echo why; exit 3"])
