"""The start without MPI, in threads of one process."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from ranks import free_port

from rdmacoll._base import channel
from rdmacoll._base.log import Log
from rdmacoll._start import rendezvous_client
from rdmacoll._start.launch import Launch
from rdmacoll._start.rendezvous import TcpExchange
from rdmacoll._start.secret import read_secret
from rdmacoll.errors import ConfigError, RankFailedError, RdmacollError

SECRET = b"0123456789abcdef0123456789abcdef"


class Meeting:
    """Runs ranks as threads, and collects the result or the exception of each."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.results: dict[object, object] = {}
        self.threads: list[threading.Thread] = []

    def start(
        self,
        key,
        *,
        rank,
        size,
        body=None,
        secret=SECRET,
        timeout_s: float | None = 20.0,
        lists=None,
        job="",
        is_by_hand=False,
        silence_s=5.0,
        log="error",
        called_off=lambda: "",
    ) -> None:
        """lists: the addresses of workers, and of servers. A key stands for a process."""
        launch = Launch("a test", rank, size, self.address, job=job)
        if lists is not None:
            launch = Launch(
                "a test", rank, size, lists[0][0], hosts=(*lists[0], *lists[1]), servers=len(lists[1])
            )
        options = {"is_by_hand": is_by_hand, "silence_s": silence_s, "process": str(key)}

        def work() -> None:
            try:
                exchange = TcpExchange(launch, secret, timeout_s, Log(log), called_off=called_off, **options)
                try:
                    self.results[key] = (body or (lambda c: c.allgather(f"text {rank}")))(exchange)
                finally:
                    exchange.close()
            except RdmacollError as error:
                self.results[key] = error

        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()

    def finish(self) -> dict[object, object]:
        for thread in self.threads:
            thread.join(40)
            assert not thread.is_alive(), "a rank hangs"
        return self.results


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_everybody_gets_everybodys_text_in_rank_order(size):
    meeting = Meeting()
    for rank in reversed(range(size)):  # rank 0 comes last
        meeting.start(
            rank,
            rank=rank,
            size=size,
            body=lambda c, rank=rank: [c.job(), *(c.allgather(f"{turn}/{rank}" * 999) for turn in range(5))],
        )
    results = meeting.finish()
    expected = [[f"{turn}/{rank}" * 999 for rank in range(size)] for turn in range(5)]
    for rank in range(size):
        assert results[rank][1:] == expected
        assert results[rank][0] == results[0][0]
    name, secret = results[0][0]
    assert len(name) == 16
    assert len(secret) == 32
    assert secret != SECRET


@pytest.mark.parametrize("caller", [0, 1])
def test_a_start_that_one_rank_calls_off_ends_on_all_ranks(caller):
    meeting, reason, has_come = Meeting(), "another world begins.", threading.Event()

    def body(exchange):
        has_come.set()
        return exchange.allgather("text")

    calls = {caller: {"called_off": lambda: reason if has_come.is_set() else ""}}
    for rank in (0, 1):  # rank 2 never comes
        meeting.start(rank, rank=rank, size=3, timeout_s=None, body=body, **calls.get(rank, {}))
    results = meeting.finish()
    assert all(isinstance(one, RankFailedError) for one in results.values())
    assert (str(results[caller]), results[caller].rank) == (reason, -1)
    if caller == 0:
        assert (str(results[1]), results[1].rank) == (reason, -1)


def test_a_wrong_secret_is_refused_and_harms_nobody():
    meeting = Meeting()
    meeting.start(0, rank=0, size=2)
    meeting.start("stranger", rank=1, size=2, secret=b"another secret, also long enough")
    meeting.threads[1].join(20)
    meeting.start(1, rank=1, size=2)
    results = meeting.finish()
    assert isinstance(results["stranger"], ConfigError)
    assert "RDMACOLL_SECRET_FILE" in str(results["stranger"])
    assert results[0] == results[1] == ["text 0", "text 1"]


def test_garbage_and_silence_harm_nobody():
    meeting = Meeting()
    meeting.start(0, rank=0, size=2)
    host, port = meeting.address.split(":")
    strangers = []
    for data in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\x80\x04\x95" * 100, bytes(64)):
        for _ in range(100):
            try:
                stranger = socket.create_connection((host, int(port)), timeout=5)
                break
            except OSError:
                time.sleep(0.05)  # rank 0 does not listen yet
        stranger.sendall(data)
        strangers.append(stranger)
    meeting.start(1, rank=1, size=2)
    results = meeting.finish()
    for stranger in strangers:
        stranger.close()
    assert results[0] == results[1] == ["text 0", "text 1"]


def test_two_processes_of_one_rank_are_named():
    meeting = Meeting()
    meeting.start(0, rank=0, size=4)
    for key in ("a", "b"):
        meeting.start(key, rank=2, size=4)
    results = meeting.finish()
    assert all(isinstance(result, RdmacollError) for result in results.values()), results
    assert "two processes are rank 2" in str(results[0])
    assert "two processes are rank 2" in str(results["a"])
    assert "two processes are rank 2" in str(results["b"])


def test_different_sizes_are_named():
    meeting = Meeting()
    meeting.start(0, rank=0, size=3)
    meeting.start(1, rank=1, size=2)
    results = meeting.finish()
    for result in results.values():
        assert isinstance(result, ConfigError)
        assert "has size 3" in str(result)
        assert "2" in str(result)


def test_missing_ranks_are_named_at_the_deadline():
    meeting = Meeting()
    meeting.start(0, rank=0, size=4, timeout_s=0.5)
    meeting.start(2, rank=2, size=4, timeout_s=20)
    results = meeting.finish()
    for result in results.values():
        assert isinstance(result, ConfigError)
        assert "ranks 1, 3 of 4" in str(result)


def test_an_unreachable_rank_0_is_named_at_the_deadline():
    meeting = Meeting()
    meeting.start(1, rank=1, size=2, timeout_s=0.5)
    error = meeting.finish()[1]
    assert isinstance(error, ConfigError)
    assert meeting.address in str(error)
    assert "refused" in str(error)


def test_a_rank_that_leaves_between_rounds_is_named():
    meeting = Meeting()
    for rank in range(3):
        rounds = 1 if rank == 1 else 2
        meeting.start(rank, rank=rank, size=3, body=lambda c, n=rounds: [c.allgather("x") for _ in range(n)])
    results = meeting.finish()
    for rank in (0, 2):
        assert isinstance(results[rank], RankFailedError)
        assert results[rank].rank == 1


def test_a_port_that_is_taken_is_an_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match="another program has port"):
            TcpExchange(Launch("a test", 0, 2, address), SECRET, 1.0, Log())


def test_a_run_that_has_begun_already_is_told_from_one_that_has_not(monkeypatch):
    monkeypatch.setattr("rdmacoll._start.rendezvous_client._ANSWER_S", 0.1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match="is silent: a run has begun without this process"):
            TcpExchange(Launch("a test", 1, 2, address), SECRET, 0.5, Log("error"))


def test_another_program_at_the_address_is_an_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 20)
            connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match="another program"):
            TcpExchange(Launch("a test", 1, 2, address), SECRET, 5.0, Log())
        thread.join(5)


def test_a_start_that_fails_ends_at_once_and_a_late_rank_finds_nobody():
    meeting = Meeting()
    meeting.start(0, rank=0, size=3)
    begin = time.monotonic()
    meeting.start(1, rank=1, size=2)
    for thread in meeting.threads:
        thread.join(20)
    assert time.monotonic() - begin < 2, "rank 0's error waits for somebody"
    meeting.start(2, rank=2, size=3, timeout_s=0.5)
    results = meeting.finish()
    for rank in (0, 1):
        assert "start all ranks with the same size" in str(results[rank])
    assert "within 0.5 s" in str(results[2])
    assert "No process listens at this address" in str(results[2])


def test_frames_that_were_changed_repeated_or_too_long_are_refused():
    writer = channel.FrameWriter(b"key", b"up")
    first, second = writer.frame({"a": 1}), writer.frame({"a": 2})
    reader = channel.FrameReader(b"key", b"up", 1000)
    for byte in first:
        assert reader.take() is None
        reader.add(bytes([byte]))
    assert reader.take() == {"a": 1}
    reader.add(first)
    with pytest.raises(channel.ProtocolError, match="signature"):
        reader.take()
    for position in range(4, len(second)):
        changed = bytearray(second)
        changed[position] ^= 1
        reader = channel.FrameReader(b"key", b"up", 1000)
        reader.add(first + bytes(changed))
        assert reader.take() == {"a": 1}
        with pytest.raises(channel.ProtocolError, match="signature"):
            reader.take()
    reader = channel.FrameReader(b"key", b"up", 3)
    reader.add(first)
    with pytest.raises(channel.ProtocolError, match="bytes"):
        reader.take()
    reader = channel.FrameReader(b"key", b"down", 1000)
    reader.add(first)
    with pytest.raises(channel.ProtocolError, match="signature"):
        reader.take()


def test_the_secret_file_is_made_once_by_the_first_process(tmp_path):
    path = tmp_path / "deep" / "secret"
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(read_secret(str(path)))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_a_secret_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "secret"
    read_secret(str(path))
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(str(path))


def test_a_short_or_unreadable_secret_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="5 bytes"):
        read_secret(str(path))
    blocker = Path(tmp_path / "file")
    blocker.write_text("")
    with pytest.raises(ConfigError, match="RDMACOLL_SECRET_FILE"):
        read_secret(str(blocker / "secret"))
    with pytest.raises(ConfigError, match=r"RDMACOLL_SECRET_FILE=.*: Is a directory"):
        read_secret(str(tmp_path))


def _refused_secret(path: Path, secret: bytes) -> str:
    path.write_bytes(secret)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        read_secret(str(path))
    return str(caught.value)


@pytest.mark.parametrize(
    ("secret", "what"),
    [
        (b"a" * 16, "has 1 different bytes"),
        (bytes(64), "has 1 different bytes"),
        (b"secret" * 6, "repeats or counts up"),
        (b"0123456789abcdef", "repeats or counts up"),
        (b"zyxwvutsrqponmlkjihgfedcba", "repeats or counts up"),
        (b"x" * 5000, "more than 4096 bytes"),
        (b"   \n", "0 bytes"),
    ],
)
def test_a_secret_that_can_be_guessed_is_refused(tmp_path, secret, what):
    refusal = _refused_secret(tmp_path / "secret", secret)
    assert what in refusal
    assert "Remove the file, and the next start makes a good one." in refusal


def test_secrets_that_people_and_openssl_make_are_taken(tmp_path):
    path = tmp_path / "secret"
    draws = random.Random(5)
    for secret in (
        b"correct horse battery staple",
        *(draws.randbytes(16).hex().encode() for _ in range(999)),
    ):
        path.write_bytes(secret + b"\n")
        path.chmod(0o600)
        assert read_secret(str(path)) == secret


def test_a_secret_from_a_fifo_or_a_device_is_refused_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for location in (str(fifo), "/dev/zero", "/dev/null"):
        with pytest.raises(ConfigError, match=r"is no regular file.*: name a file"):
            read_secret(location)


@pytest.mark.parametrize("location", ["a\0b", "~nobody_of_this_name/secret", "x" * 5000, "\ud800/secret"])
def test_a_secrets_path_that_cannot_be_one_is_refused(location):
    with pytest.raises(ConfigError, match=r"RDMACOLL_SECRET_FILE=.*Name a file"):
        read_secret(location)


def test_nothing_is_said_where_stderr_is_closed(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    Log("warning", 0).warning("waiting")


def test_who_has_met_itself_leaves_the_port_to_rank_0(monkeypatch):
    real, calls = socket.create_connection, []

    def connection(where, timeout):
        calls.append(where)
        if len(calls) > 1:
            return real(where, timeout=timeout)
        itself = socket.socket()  # Linux does this for a port of its ephemeral range
        itself.bind(where)
        itself.connect(where)
        return itself

    monkeypatch.setattr(rendezvous_client.socket, "create_connection", connection)
    monkeypatch.setattr(rendezvous_client, "_ANSWER_S", 1000.0)
    meeting = Meeting()
    meeting.start("guest", rank=1, size=2)
    end = time.monotonic() + 15
    while len(calls) < 2:
        assert time.monotonic() < end, "it still talks to itself"
        time.sleep(0.01)
    meeting.start("host", rank=0, size=2)
    assert meeting.finish() == {"guest": ["text 0", "text 1"], "host": ["text 0", "text 1"]}
