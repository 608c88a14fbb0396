"""Values from outside: a bad value raises only a ConfigError, with name, value and cure."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from rdmacoll._abi.library import load
from rdmacoll._base import external_values
from rdmacoll._start import bootstrap, cluster, launch
from rdmacoll._start.secret import read_secret
from rdmacoll._world import init_options
from rdmacoll.benchmarks.rpc.payloads import recorded
from rdmacoll.errors import ConfigError
from rdmacoll.ps import calls

VALUES = 10_000
SEED = 20261126
MESSAGE_MAX = 1500
NO_LISTS = dict.fromkeys(("job_name", "task_index", "ps_hosts", "worker_hosts", "protocol"))
NO_HAND = dict.fromkeys(("comm", "rank", "size", "rendezvous"))
LAUNCHERS = (
    {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
    {"PMI_SIZE": "2", "PMI_RANK": "1"},
    {"PMIX_SIZE": "2", "PMIX_RANK": "0"},
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    | {"SLURM_STEP_NODELIST": "a[1-2]"},
    {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
    | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    {"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "2", "RDMACOLL_RENDEZVOUS": "node1:4000"},
)
TEXTS = (
    *("", " ", "-1", "0", "2", "007", "+3", "1.5", "1e999", "nan", "inf", "0x10", "1_000", "9" * 5000),
    *(
        "\u0663",
        "\u00b2",
        "\uff11",
        "host:\uff11",
        "a,b",
        "a:b",
        "[::1]:70000",
        "[::1]",
        "::",
        "host:",
        "host:0",
    ),
    *(
        "host:99999",
        ":5",
        "a..b:1",
        "x" * 70 + ":1",
        "a b:1",
        "\ud800",
        "\udcff\udc80",
        "\u2028",
        "\x7f",
        "\x01",
    ),
    *(
        "None",
        "null",
        "5",
        "[]",
        "{}",
        "[" * 100_000,
        '{"a":' * 50_000,
        "%s%n",
        "/dev/null",
        "/proc/self/mem",
    ),
    *("~nobody_here", "~", "\\", "'", '"', "a=b", "x" * 100_000, "true", "auto", "\u00e9"),
    *('{"cluster":5}', '{"cluster":{"worker":5}}', '{"cluster":{"worker":["a:1"]},"task":5}'),
    '{"cluster":{"worker":["a:1"]},"task":{"type":[],"index":{}}}',
    '{"cluster":{"worker":["a:1",5,null]},"task":{"type":"worker","index":1.5}}',
    '{"cluster":{"ps":{"0":"a:1"},"worker":["b:1"]},"task":{"type":"worker","index":"0"}}',
    '{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":NaN}}',
    '{"cluster":{"worker":["\\ud800:1","b:1"]},"task":{"type":"\\ud800","index":0}}',
    '{"cluster":{"worker":["a:1","b:1"],"\\ud800":[]},"task":{"type":"worker","index":true}}',
    *('{"tensors":5}', '{"tensors":[{}]}', '{"tensors":[{"bytes":1e9}]}', '{"tensors":[{"bytes":-4}]}'),
)


class NoText:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class WrongText:
    def __str__(self) -> Any:
        return 5


OBJECTS: tuple[Any, ...] = (
    *(None, True, 5, -5, 1.5, float("nan"), 10**5000, b"x", b"\xff", [], [1, 2], [[1], [2]], {}, {"a": 1}),
    *(set(), object(), NoText(), WrongText(), np.int64(3), np.array([1, 2]), np.array(5), int, ..., range(3)),
    *("a\0b", "a\nb", [None], ["\ud800:1"], [5, "a:1"], [NoText()], 3j, (one for one in "ab")),
)


class Values:
    """Draws bad values from a seed: known bad values, pairs of them, and all kinds of letters."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def text(self) -> str:
        kind = self.draw.random()
        if kind < 0.6:
            return self.draw.choice(TEXTS)
        if kind < 0.8:
            return self.draw.choice(",:; .").join(self.draw.choice(TEXTS)[:200] for _ in range(2))
        spans = ((1, 128), (128, 0xD800), (0xDC80, 0xDD00))
        return "".join(
            chr(self.draw.randrange(*self.draw.choice(spans))) for _ in range(self.draw.randrange(12))
        )

    def object(self) -> Any:
        return self.text() if self.draw.random() < 0.3 else self.draw.choice(OBJECTS)

    def bytes(self) -> bytes:
        if self.draw.random() < 0.5:
            return self.text().encode("utf-8", "surrogatepass")
        return self.draw.randbytes(self.draw.randrange(100))


def ask(sets: Any = None, argv: Any = False, lists: Any = None, **settings: Any) -> init_options.InitOptions:
    found = init_options.read_options(
        load(), sets, settings, by_hand=NO_HAND, argv=argv, lists={**NO_LISTS, **(lists or {})}
    )
    if found.settings_error is not None:
        raise found.settings_error
    return found


def in_environment(name: str, value: str, call: Callable[[], object]) -> None:
    """Makes the call with the variable set, if the system accepts the value."""
    try:
        os.environ[name] = value
    except (ValueError, UnicodeEncodeError):
        return
    try:
        call()
    finally:
        del os.environ[name]


class Places:
    """The places where values enter. Each method draws one value for its place.

    It returns the name that a refusal has to contain (or ""), the value, and the call that takes the value.
    """

    def __init__(self, folder: Path, values: Values) -> None:
        self.values, self.folder = values, folder
        rows, _ = load().readable_settings()
        self.settings = [str(row["name"]) for row in rows]
        self.variables = self.settings + [alias for row in rows for alias in row["aliases"]]
        self.servers = ask(mode="ps").values

    def variable(self) -> tuple[str, Any, Callable[[], object]]:
        name, value = self.values.draw.choice(self.variables), self.values.text()
        return name, value, lambda: in_environment(name, value, ask)

    def argument(self) -> tuple[str, Any, Callable[[], object]]:
        name = self.values.draw.choice(self.settings)[len("RDMACOLL_") :].lower()
        value = self.values.object()
        if name == "process_sets":
            return "set", value, lambda: ask(value)  # a ProcessSet names itself
        return name, value, lambda: ask(**{name: value})

    def launcher(self) -> tuple[str, Any, Callable[[], object]]:
        environ = dict(self.values.draw.choice(LAUNCHERS))
        name, value = self.values.draw.choice(list(environ)), self.values.text()
        environ[name] = value
        if self.values.draw.random() < 0.2:
            del environ[self.values.draw.choice(list(environ))]
        return "", value, lambda: (bootstrap.described_launch(environ), launch.by_launchers(environ))

    def tf_config(self) -> tuple[str, Any, Callable[[], object]]:
        value = self.values.text()
        options, environ = cluster.cluster_options({}, **NO_LISTS), {"TF_CONFIG": value}
        return "", value, lambda: bootstrap.find_lists(options, self.servers, environ=environ)

    def lists(self) -> tuple[str, Any, Callable[[], object]]:
        name, value = self.values.draw.choice(list(NO_LISTS)), self.values.object()
        good = {"job_name": "worker", "task_index": 0, "worker_hosts": "a:1,b:1", "ps_hosts": "c:1"}
        return "", value, lambda: ask(lists={**good, name: value})

    def by_hand(self) -> tuple[str, Any, Callable[[], object]]:
        name, value = self.values.draw.choice(("rank", "size", "rendezvous")), self.values.object()
        good: dict[str, Any] = {"rank": 0, "size": 2, "rendezvous": "a:1", name: value}
        return "", value, lambda: launch.by_hand({}, **good)

    def flags(self) -> tuple[str, Any, Callable[[], object]]:
        words = [
            self.values.draw.choice(("--job_name", "--task_index=", "--ps_hosts", "-cross_replica_sync", ""))
            + self.values.draw.choice(("", "=", " "))
            + self.values.text()
            for _ in range(4)
        ]
        value = words if self.values.draw.random() < 0.7 else self.values.object()
        return "", value, lambda: ask(argv=value)

    def secret(self) -> tuple[str, Any, Callable[[], object]]:
        path, value = self.folder / "secret", self.values.bytes()
        path.write_bytes(value)
        path.chmod(0o600)
        return str(path), value, lambda: read_secret(str(path))

    def secret_path(self) -> tuple[str, Any, Callable[[], object]]:
        value = self.values.text()
        value = value if value in ("/dev/null", "/proc/self/mem", "~nobody_here") else f"/proc/{value}"
        return "", value, lambda: read_secret(value)

    def payload(self) -> tuple[str, Any, Callable[[], object]]:
        path, value = self.folder / "payload", self.values.bytes()
        path.write_bytes(value)
        return "", value, lambda: recorded(path)

    def path(self) -> tuple[str, Any, Callable[[], object]]:
        value = self.values.object()
        return "path", value, lambda: external_values.path_of("path", value)


def test_ten_thousand_bad_values_end_in_a_sentence_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    values = Values(SEED)
    places = Places(tmp_path, values)
    ways = [getattr(places, way) for way in vars(Places) if not way.startswith("_")]
    refused = 0
    for number in range(VALUES):
        way = ways[number % len(ways)]
        name, value, give = way()
        try:
            give()
            continue
        except Exception as error:
            met = error
        text = str(met)
        case = f"seed {SEED}, value {number} ({way.__name__}): {external_values.shown(value)}: {met!r}"
        assert isinstance(met, ConfigError), case
        assert name.upper().split("/")[-1] in text.upper(), case
        assert len(text) < MESSAGE_MAX, case
        assert text.rstrip().endswith((".", "?", "`")) or "chmod" in text, case
        refused += 1
    assert refused > VALUES / 2


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda: launch.by_mpi({"PMI_SIZE": "two", "PMI_RANK": "0"}), ["PMI_SIZE='two'", "whole number"]),
        (lambda: launch.by_mpi({"PMI_SIZE": "9" * 5000, "PMI_RANK": "0"}), ["PMI_SIZE='999", "is too large"]),
        (
            lambda: cluster.tf_config_options("[" * 100_000),
            ["TF_CONFIG='[[[", "nested too deeply", "unset it"],
        ),
        (lambda: cluster.tf_config_options("{"), ["TF_CONFIG='{'", "is not JSON", "unset it"]),
        (lambda: ask(port="\ud800"), ["port='\\ud800'", "UTF-8"]),
        (lambda: ask(device="a\0b"), ["device='a\\x00b'", "holds a NUL"]),
        (lambda: ask(device="a\nb"), ["device='a\\nb'", "holds a line break"]),
        (lambda: ask(argv=5), ["argv=5", "give argv=True"]),
        (lambda: ask(5), ["process_sets=5", "give a list of ProcessSet"]),
        (lambda: ask(lists={"worker_hosts": ["a..b:1"]}), ["worker_hosts names 'a..b:1'", "host:port"]),
        (lambda: calls.path_of("path", "a\0b"), ["path='a\\x00b'", "is no path"]),
    ],
)
def test_a_refusal_has_name_value_and_cure(give, words):
    with pytest.raises(ConfigError) as caught:
        give()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_words_of_a_command_line_that_are_not_ours_may_be_anything():
    words = ["train.py", "--name=\ud800", "a\nb", "x\0", "--job_name=worker", "--task_index=0"]
    assert cluster.flags_of(words) == {"job_name": "worker", "task_index": "0"}


def test_a_payload_is_read_from_no_fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="is no regular file: give uniform"):
        recorded(tmp_path / "fifo")
