"""The profile of a machine: measured at the first start, kept in a file, and never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_lines import command_line
from cuda_sim_build import fake_driver
from rank_program import program
from ranks import Outcome, Run, run

from rdmacoll.cli.doctor_facts import Machine
from rdmacoll.cli.doctor_system import profile

LOG = {"RDMACOLL_LOG": "debug", "RDMACOLL_PROFILE": "auto"}
MEASURED, READ = "measured this machine in", "the profile of this machine is from"
# Sums in one order, whatever the algorithm: other algorithms for other sizes must not be seen in the bits.
SUMS = program(
    """
import hashlib
digest = hashlib.sha256()
values = np.random.default_rng(me)
for count in (1, 700, 9000, 70_000, 300_001, 1_100_000):
    digest.update(engine.allreduce(values.standard_normal(count, np.float32), op=rdmacoll.Sum).tobytes())
""",
    after='report({"sums": digest.hexdigest()})',
)
BARRIER = program("engine.barrier()")
# The numbers of a profile for which the machine must be idle.
IDLE = {"line_ns": 60, "peer_copy": 40_000}


FOUND = {
    "source": "file",
    "path": "/c/p.json",
    "note": "",
    "fields": [
        {"name": "cores", "unit": "cores", "value": 8},
        {"name": "copy_l3", "unit": "bytes/us", "value": 64_120},
        {"name": "copy_memory", "unit": "bytes/us", "value": None},
        {"name": "line_ns", "unit": "ns", "value": 53},
    ],
}
DAMAGED = {**FOUND, "source": "none", "note": "/c/p.json is not used: it is damaged."}


@pytest.mark.parametrize(
    ("found", "state", "texts"),
    [
        (FOUND, "ok", ["8 cores", "in L3 64.1 GB/s", "53 ns", "/c/p.json"]),
        ({**FOUND, "source": "none"}, "ok", ["not measured yet"]),
        ({**FOUND, "source": "off"}, "ok", ["off (RDMACOLL_PROFILE)"]),
        (DAMAGED, "note", ["it is damaged", "rdmacoll tune", "off"]),
    ],
)
def test_doctor_shows_the_profile_and_its_fault(found, state, texts):
    (finding,) = profile(Machine(profile=found))
    assert finding.state == state
    shown = finding.seen + finding.cure
    assert [text for text in texts if text not in shown] == []
    assert "not measured GB/s" not in shown


def test_doctor_says_nothing_of_a_profile_without_an_engine():
    assert list(profile(Machine())) == []


def cache(folder: Path) -> dict[str, str]:
    return {**LOG, "XDG_CACHE_HOME": str(folder)}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def one_line(profile: dict[str, object]) -> str:
    """A profile as the engine writes it."""
    return json.dumps(profile, separators=(",", ":"))


def times(outcome: Outcome, words: str) -> int:
    """How often the ranks said these words. Ranks of mpirun share one output."""
    return sum(output.count(words) for output in {rank.output for rank in outcome.ranks})


@pytest.mark.parametrize("launcher", ["tcp", "mpirun"])
def test_the_first_start_measures_once_and_the_next_one_reads(tmp_path, launcher):
    first = run(BARRIER, 3, launcher=launcher, env=cache(tmp_path))
    first.succeeded()
    assert (times(first, MEASURED), times(first, READ)) == (1, 0), first.text()
    (path,) = files(tmp_path)
    assert path.parent == tmp_path / "rdmacoll"
    found = json.loads(path.read_text())
    assert found["copy_l2"] > 0
    found |= IDLE  # a busy machine may have left them out
    path.write_text(one_line(found))
    second = run(BARRIER, 3, launcher=launcher, env=cache(tmp_path))
    second.succeeded()
    assert (times(second, MEASURED), times(second, READ)) == (0, 1), second.text()
    assert json.loads(path.read_text()) == found


def test_a_start_measures_again_what_a_busy_machine_has_left_out(tmp_path):
    path = tmp_path / "profile.json"
    env = {**LOG, "RDMACOLL_PROFILE": str(path)}
    run(BARRIER, 2, env=env).succeeded()
    busy = json.loads(path.read_text()) | IDLE | {"cores": 2, "line_ns": 0, "copy_l2": 1 << 40}
    path.write_text(one_line(busy))
    again = run(BARRIER, 2, env=env)
    again.succeeded()
    assert times(again, MEASURED) == 1, again.text()
    found = json.loads(path.read_text())
    assert found["copy_l2"] == busy["copy_l2"]  # the better one of both


def test_a_world_of_one_measures_nothing(tmp_path):
    run(BARRIER, 1, env=cache(tmp_path)).succeeded()
    assert files(tmp_path) == []


def test_two_jobs_that_start_at_once_leave_one_whole_file(tmp_path):
    with Run(BARRIER, 8, env=cache(tmp_path)) as first, Run(BARRIER, 2, env=cache(tmp_path)) as second:
        first.finish(120).succeeded()
        second.finish(120).succeeded()
    (path,) = files(tmp_path)
    assert json.loads(path.read_text())["profile"] == 2


def test_no_folder_for_the_file_is_told_once_and_ends_nothing(tmp_path):
    (tmp_path / "file").touch()
    unwritable = run(BARRIER, 2, env=cache(tmp_path / "file"))
    unwritable.succeeded()
    assert times(unwritable, "info: the profile of this machine cannot be kept in") == 1
    homeless = run(BARRIER, 2, env={**LOG, "HOME": "", "XDG_CACHE_HOME": ""})
    homeless.succeeded()
    assert times(homeless, "info: the profile of this machine is not kept") == 1, homeless.text()
    quiet = run(BARRIER, 2, env={"RDMACOLL_PROFILE": "auto", "XDG_CACHE_HOME": str(tmp_path / "file")})
    quiet.succeeded()
    assert "profile" not in quiet.text()


def test_a_named_file_is_kept_and_one_that_is_damaged_is_replaced(tmp_path):
    path = tmp_path / "own" / "profile.json"
    env = {**LOG, "RDMACOLL_PROFILE": str(path), "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": ""}
    run(BARRIER, 2, env=env).succeeded()
    whole = path.read_text()
    path.write_text(whole[:-40])
    again = run(BARRIER, 2, env=env)
    again.succeeded()
    assert f"warning: {path} is not used: it is damaged" in again.text()
    assert json.loads(path.read_text()).keys() == json.loads(whole).keys()
    assert files(tmp_path) == [path]


def test_no_profile_changes_the_bits_of_sums(tmp_path):
    """Slow and fast machines take other algorithms, which all add in one order within a node."""
    expected = run(SUMS, 3, env={"RDMACOLL_PROFILE": "off"}).succeeded()
    path = tmp_path / "profile.json"
    run(BARRIER, 2, env={**LOG, "RDMACOLL_PROFILE": str(path)}).succeeded()
    measured = json.loads(path.read_text())
    for rate, time_ns in ((1, 1_000_000), (1_000_000, 1)):
        planted = {
            name: value if isinstance(value, str) or name == "profile" else time_ns if "_ns" in name else rate
            for name, value in measured.items()
        }
        path.write_text(one_line(planted))
        outcome = run(SUMS, 3, env={**LOG, "RDMACOLL_PROFILE": str(path)})
        found = outcome.succeeded()
        assert READ in outcome.text()
        assert [one["sums"] for one in found] == [one["sums"] for one in expected]


def test_tune_prints_and_keeps_the_profile_and_doctor_shows_it(tmp_path):
    env = cache(tmp_path)
    code, found, output = command_line(tmp_path, "doctor", env=env)
    assert "not measured yet" in output
    with_gpus = {**env, "RDMACOLL_CUDA_LIBRARY": str(fake_driver())}
    code, found, output = command_line(tmp_path, "tune", env=with_gpus)
    assert (code, found["ok"], found["source"]) == (0, True, "measured"), output
    assert found["gpus"]
    assert "segments to stage 1M, 16M, 256M" in output
    for gpu in found["gpus"]:
        assert gpu["problem"] == ""
        assert [row["bytes"] for row in gpu["segments"]] == [1 << 20, 16 << 20, 256 << 20]
    (path,) = files(tmp_path / "rdmacoll")
    assert str(path) in output
    assert found["path"] == str(path)
    values = {field["name"]: field["value"] for field in found["fields"]}
    assert values["copy_l2"] > 0
    assert "a cache line from core to core" in output
    kept = json.loads(path.read_text())
    assert {name: value or None for name, value in kept.items() if name in values} == values
    code, found, output = command_line(tmp_path, "doctor", env=env)
    assert str(path) in " ".join(finding["seen"] for finding in found["findings"])


def test_tune_fails_where_it_cannot_keep_the_profile(tmp_path):
    (tmp_path / "file").touch()
    code, found, output = command_line(tmp_path, "tune", env=cache(tmp_path / "file"))
    assert (code, found["ok"]) == (1, False)
    assert "cannot be kept" in output
    code, found, output = command_line(tmp_path, "tune", env={"RDMACOLL_PROFILE": "off"})
    assert (code, found["error"]["kind"]) == (1, "ConfigError"), found
    assert "unset it" in output


@pytest.mark.parametrize("operation", ["allreduce", "broadcast", "gather"])
def test_plan_measures_beside_the_model(tmp_path, operation):
    arguments = ["plan", "--measure", "--op", operation, "--bytes", "256K"]
    code, found, output = command_line(tmp_path, *arguments, ranks=2, launcher="tcp")
    assert (code, found["ok"]) == (0, True), output
    (row,) = found["rows"]
    assert row["bytes"] == 256 << 10
    assert min(row["model_us"], row["time_us"]["min"]) > 0
    assert row["ratio"] == pytest.approx(row["model_us"] / row["time_us"]["median"])
    assert "256K" in output
    code, _, output = command_line(tmp_path, "plan", "--measure")
    assert code == 2
    assert "mpirun --bind-to none" in output
