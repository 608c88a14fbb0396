"""Starts a program on several ranks, through mpirun or the TCP rendezvous, and collects their reports.

Every process has a session of its own and is ended by its id. No process outlives the deadline.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fork_server import Forked, Parent

ROOT = Path(__file__).resolve().parent.parent
LAUNCHERS = ("tcp", "mpirun")
# Variables that could make a test's ranks detect another launcher.
FOREIGN = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "SLURM_",
    "RDMACOLL_",
    "TF_RDMA_",
    "RDMA_",
    "MASTER_",
    "WORLD_SIZE",
    "RANK",
)


@dataclass
class Rank:
    """The results of one rank."""

    code: int | None = None
    output: str = ""
    report: Any = None


@dataclass
class Outcome:
    """The results of a run. Under mpirun all ranks share one output and one exit code."""

    ranks: list[Rank] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def reports(self) -> list[Any]:
        """The value that each rank gave to `report()`, or None."""
        return [rank.report for rank in self.ranks]

    def succeeded(self) -> list[Any]:
        """Returns the reports. Fails unless every rank ended with 0."""
        bad = [number for number, rank in enumerate(self.ranks) if rank.code != 0]
        assert not bad, f"ranks {bad} failed:\n{self.text()}"
        return self.reports

    def text(self) -> str:
        """Returns all results as text."""
        return "\n".join(
            f"--- rank {number}: exit code {rank.code}, report {rank.report}\n{rank.output[-6000:]}"
            for number, rank in enumerate(self.ranks)
        )


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment without launchers' variables, with the tree importable and few threads."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environ["PYTHONUNBUFFERED"] = "1"
    environ["PYTHONFAULTHANDLER"] = "1"
    environ["OMP_NUM_THREADS"] = "1"
    environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    # Equal choices on every machine, and no file in the home of the user.
    environ["RDMACOLL_PROFILE"] = "off"
    environ.update(extra or {})
    return environ


def run_python(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs one process without a launcher, from the tree's root. Returns exit status, stdout and stderr."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def launcher_version() -> str:
    """Returns the version text of mpirun."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20)
    return version.stdout + version.stderr


def mpirun_command(ranks: int) -> list[str]:
    """Returns the mpirun command, with the options to start more ranks than cores."""
    mpirun = shutil.which("mpirun")
    assert mpirun is not None, "mpirun is missing: make setup"
    command = [mpirun]
    if "Open MPI" in launcher_version():
        command += ["--oversubscribe", "--bind-to", "none"]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*command, "-np", str(ranks)]


def heed_interrupts() -> None:
    """Call in a child: restores Ctrl-C, however this process was started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def free_port() -> int:
    """Returns a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_addresses(count: int) -> list[str]:
    """Returns addresses without listeners, with ports that Linux gives to no outgoing connection."""
    found: list[str] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)  # below the range of outgoing connections
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if f"127.0.0.1:{port}" not in found:
            found.append(f"127.0.0.1:{port}")
    return found


def _script(program: str | Path, folder: Path) -> str:
    if isinstance(program, Path):
        return str(program)
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    return str(path)


@functools.lru_cache(maxsize=2)
def _parent(legacy_path: str = "") -> Parent:
    """The process that forks the ranks of tests. legacy_path: PYTHONPATH of those with Keras 2 as `tf.keras`,
    or ""."""
    legacy = {"PYTHONPATH": legacy_path, "TF_USE_LEGACY_KERAS": "1"}
    return Parent(clean_environment(legacy if legacy_path else {}), ("tensorflow", "rdmacoll"))


@functools.lru_cache(maxsize=1)
def _parent_of_plain() -> Parent:
    """The process that forks the ranks without TensorFlow. `import rdmacoll` reads no variable."""
    own = (*FOREIGN, "CUDA_SIM_", "HOROVOD_", "TF_CONFIG", "TEST_")
    return Parent(clean_environment(), ("numpy", "rdmacoll"), own, exact=("PYTHONPATH",))


class Run:
    """Running ranks. As a context manager it ends them."""

    def __init__(
        self,
        program: str | Path,
        ranks: int,
        *,
        launcher: str = "tcp",
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        arguments: Sequence[str] = (),
        prefix_of: Mapping[int, Sequence[str]] | None = None,
        rendezvous: str | None = None,
        preloaded: bool = False,
        cold: bool = False,
        arguments_of: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        """Forks the ranks from a process that has imported rdmacoll, or TensorFlow if they are `preloaded`.
        Each rank is a new Python if `cold`, under mpirun, behind a prefix, and with variables that an import
        reads. Launcher "hand" sets no variables: the arguments tell the ranks everything.
        """
        self.size = ranks
        self.launcher = launcher
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._begin = time.monotonic()
        base = clean_environment({"RANKS_FOLDER": str(self._folder), **(env or {})})
        base.setdefault("RDMACOLL_SECRET_FILE", str(self._folder / "secret"))
        base.setdefault("RDMACOLL_START_TIMEOUT_S", "180")
        words = [_script(program, self._folder), *arguments]
        command = [sys.executable, *words]
        self.processes: list[subprocess.Popen[bytes] | Forked] = []
        self._files: list[tuple[Path, BinaryIO]] = []
        if launcher == "mpirun":
            self._start([*mpirun_command(ranks), *command], base)
            return
        address = rendezvous or f"127.0.0.1:{free_port()}"
        for rank in range(ranks):
            request = {
                "RDMACOLL_RANK": str(rank),
                "RDMACOLL_SIZE": str(ranks),
                "RDMACOLL_RENDEZVOUS": address,
            }
            environ = {**base, **(request if launcher == "tcp" else {}), **(env_of or {}).get(rank, {})}
            own = (arguments_of or {}).get(rank, ())
            if preloaded:
                legacy_path = environ["PYTHONPATH"] if "TF_USE_LEGACY_KERAS" in environ else ""
                self.processes.append(_parent(legacy_path).start([*words, *own], environ, self._output()))
            elif cold or rank in (prefix_of or {}) or _parent_of_plain().others(environ):
                self._start([*(prefix_of or {}).get(rank, ()), *command, *own], environ)
            else:
                self.processes.append(_parent_of_plain().start([*words, *own], environ, self._output()))

    def _output(self) -> BinaryIO:
        path = self._folder / f"output-{len(self.processes)}"
        file = path.open("wb")
        self._files.append((path, file))
        return file

    def _start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.processes.append(
            subprocess.Popen(
                command,
                env=dict(environ),
                stdout=self._output(),
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # A run that was started in the background passes on an ignored SIGINT.
                preexec_fn=heed_interrupts,
            )
        )

    @property
    def folder(self) -> Path:
        """The folder that the ranks know as RANKS_FOLDER."""
        return self._folder

    def reported(self, rank: int) -> Any:
        """Returns the rank's latest report, or None."""
        path = self._folder / f"report-{rank}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def wait_for_reports(self, ranks: Sequence[int], within_s: float = 180.0) -> None:
        """Waits until all these ranks have reported something."""
        end = time.monotonic() + within_s
        while not all(self.reported(rank) is not None for rank in ranks):
            assert time.monotonic() < end, f"no report from all of {list(ranks)}:\n{self._collect().text()}"
            time.sleep(0.02)

    def pid(self, rank: int) -> int:
        """The process id of a rank, which must have reported {"pid": ...} under mpirun."""
        if self.launcher == "mpirun":
            return int(self.reported(rank)["pid"])
        return self.processes[rank].pid

    def so_far(self) -> Outcome:
        """Returns the results so far, for a message."""
        return self._collect()

    def finish(self, deadline_s: float = 300.0) -> Outcome:
        """Waits for all ranks. Kills late ones, and then fails the test."""
        end = time.monotonic() + deadline_s
        late = False
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = True
        if late:
            self._ask_where_they_are()
        self._kill()
        outcome = self._collect()
        assert not late, f"not done within {deadline_s} s:\n{outcome.text()}"
        return outcome

    def _ask_where_they_are(self) -> None:
        """Makes Python's fault handler print the threads of each late rank."""
        late = [process for process in self.processes if process.poll() is None]
        for process in late if self.launcher != "mpirun" else []:
            process.send_signal(signal.SIGABRT)
        for process in late if self.launcher != "mpirun" else []:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                continue

    def _collect(self) -> Outcome:
        codes = [process.poll() for process in self.processes]
        texts = [path.read_text(encoding="utf-8", errors="replace") for path, _ in self._files]
        shared = self.launcher == "mpirun"
        return Outcome(
            [
                Rank(
                    codes[0 if shared else rank],
                    texts[0 if shared else rank],
                    self.reported(rank),
                )
                for rank in range(self.size)
            ],
            time.monotonic() - self._begin,
        )

    def _kill(self) -> None:
        for process in self.processes:
            if process.poll() is None or self.launcher != "mpirun":
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # the rank's own session, including children
                except ProcessLookupError:
                    pass
            process.wait()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for _path, file in self._files:
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def run(program: str | Path, ranks: int, *, deadline_s: float = 300.0, **options: Any) -> Outcome:
    """Starts the ranks, waits for them, and cleans up."""
    with Run(program, ranks, **options) as started:
        return started.finish(deadline_s)


def report(value: Any, rank: int | None = None) -> None:
    """Call inside a rank: leaves a JSON value for the test. A later report replaces an earlier one."""
    import rdmacoll

    number = rdmacoll.rank() if rank is None else rank
    folder = Path(os.environ["RANKS_FOLDER"])
    draft = folder / f".report-{number}-{os.getpid()}"
    draft.write_text(json.dumps(value), encoding="utf-8")
    draft.rename(folder / f"report-{number}.json")
