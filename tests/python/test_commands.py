"""The commands: JSON keys and exit codes."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import command_line
from marks import slow
from ranks import ROOT, clean_environment, mpirun_command, run_python

from rdmacoll._abi.library import load
from rdmacoll.cli import seeds

ROWS = {
    "bytes",
    "count",
    "dtype",
    "redop",
    "transport",
    "algorithm",
    "time_us",
    "algbw",
    "busbw",
    "wrong",
}


def test_config_shows_where_each_value_came_from(tmp_path):
    environ = {"RDMACOLL_ORDER": "canonical", "TF_RDMA_CHUNK_SIZE": "1M", "RDMACOLL_CHUNK_SIZE": "2M"}
    code, found, output = command_line(tmp_path, "config", env=environ)
    assert code == 0
    assert (found["command"], found["ok"]) == ("config", True)
    rows = {row["name"]: row for row in found["settings"]}
    assert (rows["RDMACOLL_ORDER"]["value"], rows["RDMACOLL_ORDER"]["source"]) == ("canonical", "environment")
    assert (rows["RDMACOLL_BUCKET_BYTES"]["default"], rows["RDMACOLL_BUCKET_BYTES"]["source"]) == (
        "26214400",
        "default",
    )
    assert rows["RDMACOLL_CHUNK_SIZE"]["value"] == "2097152"
    assert "TF_RDMA_CHUNK_SIZE" in rows["RDMACOLL_CHUNK_SIZE"]["note"]
    assert "RDMACOLL_ORDER" in output


def test_the_page_on_rdma_names_every_transport_and_how_rdma_is_chosen_and_tested():
    text = (ROOT / "docs" / "rdma.md").read_text()
    rows = {row["name"]: row for row in load().settings()}
    transports = rows["RDMACOLL_TRANSPORT"]["allowed"].partition("list of ")[2]
    assert f"`RDMACOLL_TRANSPORT` ({transports})" in text
    assert f"`RDMACOLL_DEVICE` or `{rows['RDMACOLL_DEVICE']['alias']}`" in text
    assert "`make test-rdma`" in text


def test_config_shows_what_tf_config_sets_in_mode_ps(tmp_path):
    cluster = {"ps": ["127.0.0.1:4001", "127.0.0.1:4002"], "worker": ["127.0.0.1:4003"]}
    environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 1}})}
    found = {}
    for mode in ("ps", "allreduce"):
        code, result, _ = command_line(tmp_path, "config", env={**environ, "RDMACOLL_MODE": mode})
        assert code == 0
        found[mode] = {row["name"]: row for row in result["settings"]}
    for name, set_there, otherwise in (("NUM_SERVERS", "2", "1"), ("PORT", "4002", "")):
        row = found["ps"][f"RDMACOLL_{name}"]
        assert (row["value"], row["source"]) == (set_there, "environment")
        assert f"={set_there} is from TF_CONFIG: ps 1 at 127.0.0.1:4002, rank 2 of 3" in row["note"]
        assert found["allreduce"][f"RDMACOLL_{name}"]["value"] == otherwise


def test_forced_algorithms_by_size_are_shown_and_foreign_words_are_explained(tmp_path):
    environ = {"RDMACOLL_ALLREDUCE_ALGORITHM": "pscpu#2:32k:xring"}
    code, found, output = command_line(tmp_path, "config", env=environ)
    assert code == 0
    row = next(row for row in found["settings"] if row["name"] == "RDMACOLL_ALLREDUCE_ALGORITHM")
    assert row["value"] == "direct:32768:ring"
    assert "pscpu#2:32k:xring is taken as direct:32768:ring" in row["note"]
    assert row["note"] in output.replace("\n", " ")


def test_a_wrong_setting_is_a_finding_with_its_sentence(tmp_path):
    code, found, output = command_line(tmp_path, "config", env={"RDMACOLL_LOG": "loud"})
    assert code == 1
    assert found["ok"] is False
    assert found["error"]["kind"] == "ConfigError"
    assert "RDMACOLL_LOG" in found["error"]["message"]
    assert "loud" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify-schedules", "--ranks", "many"],
        ["verify-schedules", "--ranks", "5:2"],
        ["verify-schedules", "--ranks", "0:2"],
        ["sim", "faults", "--seeds", "7:7"],
        ["sim", "scale", "--ranks", "8:2"],
        ["sim", "scale", "--link", "string"],
        ["bench", "allreduce", "--min", "x"],
        ["bench", "allreduce", "--turns", "3", "--peers", "openmpi"],
        ["bench", "allreduce", "--peers", "nccl"],
        ["plan", "--ranks", "none"],
        ["plan", "--bytes", "big"],
        ["plan", "--op", "sum"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_ends_with_2(tmp_path, arguments):
    code, found, _ = command_line(tmp_path, *arguments)
    assert (code, found) == (2, None)


def test_wrong_usage_is_said_by_rank_0_alone(tmp_path):
    code, found, output = command_line(tmp_path, "sim", "faults", "--seeds", "7:7", ranks=3)
    assert (code, found) == (2, None)
    assert output.count("Error: Invalid value") == 1, output


@pytest.mark.parametrize(
    ("program", "where"),
    [
        ("rdmacoll", "missing/result.json"),
        ("rdmacoll", "."),
        ("rdmacoll", "/proc/result.json"),
        ("tests/train.py", "missing/result.json"),
    ],
)
def test_a_json_file_that_cannot_be_written_is_usage_and_nothing_runs(tmp_path, program, where):
    start = [program] if program.endswith(".py") else ["-m", program, "sim", "faults", "--seeds", "0:1"]
    result = run_python(*start, "--json", str(tmp_path / where))
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "cannot be written" in result.stderr
    assert "Traceback" not in result.stderr


def run_in(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rdmacoll", *arguments],
        cwd=folder,
        env=clean_environment(variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "variables", "code"),
    [
        (["config"], {}, 0),
        (["doctor"], {"RDMACOLL_RDMA": "false"}, None),  # as the machine is
        (["plan", "--ranks", "4", "--bytes", "1M"], {}, 0),
        (["sim", "faults", "--seeds", "0:2"], {}, 0),
        (["config"], {"RDMACOLL_LOG": "loud"}, 1),
    ],
)
def test_standard_output_has_the_json_alone_when_it_is_to_go_there(tmp_path, arguments, variables, code):
    result = run_in(tmp_path, *arguments, "--json", "-", **variables)
    found = json.loads(result.stdout)
    assert found["command"] == " ".join(arguments[: 2 if arguments[0] == "sim" else 1])
    assert result.returncode == (0 if found["ok"] else 1) == (result.returncode if code is None else code)
    assert result.stderr  # the text for people
    assert list(tmp_path.iterdir()) == []


def test_standard_output_has_the_json_of_rank_0_alone(tmp_path):
    command = [*mpirun_command(2), sys.executable, "-m", "rdmacoll", "config", "--json", "-"]
    result = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=100
    )
    assert json.loads(result.stdout)["ok"] is True, result.stderr


def test_what_children_print_is_no_part_of_the_json(tmp_path):
    program = (
        "import os, sys; from rdmacoll.cli import main, seeds\n"
        "def loud(*_, **__): os.system('echo from a child'); raise OSError('and it breaks')\n"
        "seeds.survey = loud; sys.argv[1:] = ['sim', 'faults', '--json', '-']; main.main()"
    )
    result = run_python("-c", program, timeout_s=60)
    assert "from a child" in result.stderr
    assert "and it breaks" in json.loads(result.stdout)["error"]["message"]


def test_what_else_writes_a_file_takes_no_standard_output(tmp_path):
    result = run_in(tmp_path, "bench", "record", "--out", "-", "--model", "resnet50")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--out takes a file" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_json_takes_the_place_of_no_pipe_and_no_link(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    (tmp_path / "there").touch()
    link.symlink_to("there")
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for target in (pipe, link):
            assert run_in(tmp_path, "config", "--json", str(target)).returncode == 0
        assert json.loads(os.read(end, 1 << 20))["command"] == "config"
    finally:
        os.close(end)
    assert pipe.is_fifo()
    assert json.loads(link.read_text())["command"] == "config"
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "there"}


def test_json_leaves_other_files_of_its_folder_alone(tmp_path):
    others = {"result.json.part", ".result.json.part"}
    for name in others:
        (tmp_path / name).write_text("of somebody else")
    assert run_in(tmp_path, "config", "--json", "result.json").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", *others}
    assert {(tmp_path / name).read_text() for name in others} == {"of somebody else"}


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("", "standard output"),
        ("--json -", "standard output"),
        ("--json /dev/full >&2", "--json '/dev/full'"),
    ],
)
def test_a_full_disk_is_one_sentence_with_its_place(words, place):
    line = f"{shlex.quote(sys.executable)} -m rdmacoll config > /dev/full {words}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    (said,) = [text for text in done.stderr.splitlines() if "cannot be written" in text]
    assert said.startswith(f"rdmacoll config: RdmacollError: {place} cannot be written: No space left on ")
    assert "Errno" not in done.stderr


def test_a_command_that_breaks_leaves_its_json(tmp_path):
    path = tmp_path / "result.json"
    program = (
        "import sys; from rdmacoll.cli import main, seeds\n"
        "def broken(*_, **__): raise ZeroDivisionError('a bug')\n"
        f"seeds.survey = broken; sys.argv[1:] = ['sim', 'faults', '--json', {str(path)!r}]; main.main()"
    )
    result = run_python("-c", program, timeout_s=60)
    assert result.returncode == 1
    assert "ZeroDivisionError: a bug" in result.stderr
    found = json.loads(path.read_text())
    assert (found["command"], found["ok"]) == ("sim faults", False)
    assert "ZeroDivisionError: a bug" in found["error"]["message"]


def test_config_breaks_no_name_at_80_columns(tmp_path):
    forced = {"RDMACOLL_ALLREDUCE_ALGORITHM": "recursive_doubling:32k:ring:64M:halving_doubling"}
    for arguments, env in itertools.product((["config"], ["config", "--all"]), ({}, forced)):
        code, found, output = command_line(tmp_path, *arguments, env={"COLUMNS": "80", **env})
        assert code == 0
        for row in found["settings"]:
            assert row["name"] in output
            assert all(alias in output for alias in row["aliases"])
        assert "automatic" in output


# The large range keeps one processor busy for minutes, and the machine may have other work.
@pytest.mark.parametrize(("ranks", "timeout_s"), [("1:16", 400), slow("1:64", 3000)])
def test_every_schedule_is_right(tmp_path, ranks, timeout_s):
    arguments = ("verify-schedules", "--ranks", ranks)
    code, found, output = command_line(tmp_path, *arguments, timeout_s=timeout_s)
    assert code == 0, output
    assert found["failed"] == 0
    assert found["schedules"] >= 16 * 4


# The suite of the simulator runs more seeds.
@pytest.mark.parametrize("seeds", [60, slow(200)])
def test_planned_mishaps_never_hang_never_sum_wrongly_and_are_always_named(tmp_path, seeds):
    code, found, output = command_line(tmp_path, "sim", "faults", "--seeds", f"0:{seeds}")
    assert code == 0, output
    assert found["seeds"] == seeds
    assert (found["hangs"], found["wrong_sums"], found["unnamed_errors"]) == (0, 0, 0)
    assert found["failing_seeds"] == []
    assert (found["lost_wakeups"], found["crashes"]) == (0, 0)
    code, found, output = command_line(tmp_path, "sim", "faults", "--seed", "3")
    assert (code, found["seeds"]) == (0, 1)
    assert " submits " in output
    assert output.count("has ended") >= 1


def test_a_seed_that_breaks_the_process_is_a_finding_and_the_others_go_on(monkeypatch, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, sys\n"
        "for line in sys.stdin:\n"
        "    first, end = map(int, line.split())\n"
        "    if first <= 23 < end: sys.stderr.write('a broken law'); sys.stderr.flush(); os.abort()\n"
        '    print(\'{"seeds": %d, "failing_seeds": [], "findings": []}\' % (end - first), flush=True)\n'
    )
    monkeypatch.setattr(seeds, "WORKER", [str(worker)])
    found = seeds.survey(0, 70)
    assert (found["seeds"], found["crashes"], found["failing_seeds"]) == (70, 1, [23])
    assert "seed 23: breaks: a broken law" in found["findings"][0]


def test_scale_on_modelled_links(tmp_path):
    plot = tmp_path / "curves.svg"
    worlds = ("--ranks", "2:4", "--bytes", "1M", "--algorithms", "auto,ring,direct", "--link", "1gbit")
    code, found, output = command_line(tmp_path, "sim", "scale", *worlds, "--plot", str(plot))
    assert code == 0, output
    allreduce = [row for row in found["rows"] if row["what"] == "1M"]
    assert [row["ranks"] for row in allreduce] == [2, 4]
    # 2 (p - 1) / p of the bytes cross each port, at 117.7 MB/s.
    for row in allreduce:
        least = 2 * (row["ranks"] - 1) / row["ranks"] * (1 << 20) / 117.7
        assert least < row["time_us"]["ring"] < 1.2 * least
        assert row["moved"]
        # `chosen` names the algorithm that the engine really chooses.
        (chosen,) = row["chosen"]
        assert row["time_us"]["auto"] == row["time_us"][chosen]
    training = [row for row in found["rows"] if row["what"] == "ResNet-50"]
    assert all(0.1 < row["scaling"] < 0.5 for row in training)  # 102 MB take 0.9 s at least
    assert plot.read_text().count("<circle") == 2 * 3 * 2  # diagrams, algorithms, worlds


def test_scale_of_a_step_of_another_model(tmp_path):
    step = ("--model", "vgg16", "--bytes", "", "--forward-ms", "100", "--backward-ms", "300")
    cells = ("--ranks", "4", "--per-node", "2", "--link", "100gbit", "--algorithms", "auto")
    code, found, output = command_line(tmp_path, "sim", "scale", *cells, *step)
    assert code == 0, output
    (row,) = found["rows"]
    assert row["what"] == "VGG-16"
    assert "553 MB" in output
    # 553 MB leave each node and come back at 12 GB/s, while 300 ms compute.
    assert 0.9 < row["scaling"] < 1


def test_worlds_that_are_too_large_to_be_simulated_have_a_bound(tmp_path):
    cells = ("--bytes", "64K", "--algorithms", "auto,ring", "--backward-ms", "0", "--transfers", "1000")
    code, found, output = command_line(tmp_path, "sim", "scale", "--ranks", "4:32", *cells)
    assert code == 0, output
    rings = [row["time_us"]["ring"] for row in found["rows"]]
    assert rings[:3] == sorted(rings[:3])
    assert rings[3] is None
    known = command_line(tmp_path, "sim", "scale", "--ranks", "32", *cells[:-1], "10000")[1]["rows"][0]
    assert rings[2] <= found["rows"][3]["at_least_us"]["ring"] <= known["time_us"]["ring"]
    assert found["rows"][3]["chosen"] == ["halving_doubling"]
    assert " > " in output


@pytest.mark.parametrize("ranks", [0, 2, slow(3)])
def test_selftest_compares_everything_with_numpy(tmp_path, ranks):
    code, found, output = command_line(tmp_path, "selftest", ranks=ranks)
    assert code == 0, output
    assert found["failed"] == 0
    assert {skipped["case"] for skipped in found["skipped"]} == {"ring shm canonical", "ring tcp canonical"}
    assert found["ranks"] == max(1, ranks)
    assert found["cases"] > 2000


def test_bench_checks_every_cell_and_measures_a_peer_in_the_same_run(tmp_path):
    code, found, output = command_line(
        tmp_path,
        *["bench", "allreduce", "--min", "8", "--max", "64K", "--step", "16", "--burst", "0.005"],
        *["--peers", "openmpi"],
        ranks=2,
    )
    assert code == 0, output
    assert [row["bytes"] for row in found["rows"]] == [8, 128, 2048, 32768]
    for row in found["rows"]:
        assert set(row) >= ROWS
        assert row["algorithm"] == "auto"
        assert row["wrong"] == 0
        assert row["time_us"]["min"] <= row["time_us"]["median"] <= row["time_us"]["max"]
        assert row["count"] * 4 == row["bytes"]
        assert row["ratio"]["openmpi"] > 0
    assert "Open MPI" in found["peers"]["openmpi"]
    assert set(found["ratio"]["openmpi"]) == {"8", "128", "2048", "32768"}


def test_a_peer_that_is_not_there_is_a_failure_with_json(tmp_path):
    environ = {"PYTHONPATH": f"{_blocked(tmp_path)}:{ROOT}"}
    arguments = ["bench", "allreduce", "--max", "8", "--peers", "openmpi"]
    code, found, _ = command_line(tmp_path, *arguments, env=environ)
    assert code == 1
    assert found["error"]["kind"] == "ConfigError"


def _blocked(tmp_path: Path) -> Path:
    """Returns a folder with an mpi4py that cannot be imported, and which hides the real one."""
    folder = tmp_path / "blocked"
    (folder / "mpi4py").mkdir(parents=True)
    (folder / "mpi4py" / "__init__.py").write_text("raise ImportError('blocked')\n")
    return folder
