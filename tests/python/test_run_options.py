"""The options of horovodrun, its configuration file, and mpirun's command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ranks import clean_environment, run_python
from test_run_command import SHOW, launch, script, shown

from rdmacoll._launch import config_file, elastic_options, horovodrun_options
from rdmacoll._launch.agent import STDOUT
from rdmacoll._launch.failure import Ended, first_failure, lines_of
from rdmacoll._launch.hosts import Host, assign, parse_hosts, read_host_file
from rdmacoll._launch.mpirun import mpirun_command
from rdmacoll._launch.output import Output
from rdmacoll._launch.request import job_options
from rdmacoll.cli import run as run_module
from rdmacoll.errors import ConfigError

# Options with their effect: the settings of ranks.
EFFECTS: list[tuple[list[str], dict[str, str]]] = [
    (["--fusion-threshold-mb", "64"], {"RDMACOLL_BUCKET_BYTES": str(64 << 20)}),
    (["--fusion-threshold-mb", "0"], {"RDMACOLL_BUCKET_BYTES": "1"}),
    (["--hierarchical-allreduce"], {"RDMACOLL_ALLREDUCE_ALGORITHM": "hierarchical"}),
    (["--no-hierarchical-allreduce"], {"RDMACOLL_ALLREDUCE_ALGORITHM": "auto"}),
    (["--timeline-filename", "t.json"], {"HOROVOD_TIMELINE": "t.json"}),
    (["--no-stall-check"], {"RDMACOLL_STALL_WARNING_S": "1e9", "RDMACOLL_STALL_ERROR_S": "1e9"}),
    (["--stall-check"], {}),
    (["--stall-check-warning-time-seconds", "7"], {"RDMACOLL_STALL_WARNING_S": "7"}),
    (["--stall-check-shutdown-time-seconds", "9"], {"RDMACOLL_STALL_ERROR_S": "9"}),
    (["--stall-check-shutdown-time-seconds", "0"], {"RDMACOLL_STALL_ERROR_S": "1e9"}),
    (["--log-level", "TRACE"], {"RDMACOLL_LOG": "debug"}),
    (["--tcp"], {"RDMACOLL_TRANSPORT": "shm,tcp"}),
    (["--network-interfaces", "eth0,eth1"], {"RDMACOLL_INTERFACE": "eth0,eth1"}),
    (["--network-interface", "eth0", "--network-interface", "lo"], {"RDMACOLL_INTERFACE": "eth0,lo"}),
    (["--start-timeout", "40"], {"RDMACOLL_START_TIMEOUT_S": "40"}),
    (["--gloo"], {}),
]
WITHOUT_EFFECT = [
    ["--cycle-time-ms", "2.5"],
    ["--cache-capacity", "10"],
    ["--hierarchical-allgather"],
    ["--torus-allreduce"],
    ["--autotune"],
    ["--autotune-log-file", "log"],
    ["--autotune-warmup-samples", "1"],
    ["--autotune-steps-per-sample", "1"],
    ["--autotune-bayes-opt-max-samples", "1"],
    ["--autotune-gaussian-process-noise", "0.5"],
    ["--timeline-mark-cycles"],
    ["--mpi-threads-disable"],
    ["--num-nccl-streams", "1"],
    ["--thread-affinity", "1"],
    ["--gloo-timeout-seconds", "1"],
    ["--log-with-timestamp"],
    ["--disable-cache"],
    ["--mpi-args", "--map-by node"],
    ["--binding-args", "--bind-to core"],
]
ELASTIC = [
    ["--max-np", "4"],
    ["--slots-per-host", "2"],
    ["--elastic-timeout", "60"],
    ["--reset-limit", "3"],
    ["--blacklist-cooldown-range", "1", "2"],
]
# All options of horovodrun 0.28.1.
HOROVODRUN = """
-H --hosts -cb --check-build -hostfile --hostfile -i --ssh-identity-file -np --num-proc -p --ssh-port
-prefix-timestamp --prefix-output-with-timestamp -v --version --autotune --no-autotune --autotune-log-file
--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --autotune-steps-per-sample
--autotune-warmup-samples --binding-args --blacklist-cooldown-range --cache-capacity --config-file
--cycle-time-ms --disable-cache --elastic-timeout --fusion-threshold-mb --gloo --gloo-timeout-seconds
--hierarchical-allgather --no-hierarchical-allgather --hierarchical-allreduce --no-hierarchical-allreduce
--host-discovery-script --jsrun --log-level --log-with-timestamp --log-without-timestamp
--log-hide-timestamp --no-log-hide-timestamp --max-np --max-num-proc --min-np --min-num-proc --mpi
--mpi-args --mpi-threads-disable --no-mpi-threads-disable --network-interface --network-interfaces
--num-nccl-streams --output-filename --reset-limit --slots-per-host --stall-check --no-stall-check
--stall-check-shutdown-time-seconds --stall-check-warning-time-seconds --start-timeout --tcp
--thread-affinity --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles --torus-allreduce
--no-torus-allreduce --verbose
"""


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parses a command line, and returns the job with what was said on standard error."""

    def parse(*words: str) -> tuple[Any, str, int]:
        jobs: list[Any] = []

        class FakeJob:
            def __init__(self, options: Any) -> None:
                jobs.append(options)

            def run(self) -> Any:
                sys.exit(0)

        monkeypatch.setattr(run_module, "Job", FakeJob)
        monkeypatch.setattr(run_module, "ElasticJob", FakeJob)
        monkeypatch.setattr(run_module.bootstrap, "variables", lambda: {"PATH": "/bin"})
        result = CliRunner().invoke(run_module.run, list(words))
        return (jobs or [None])[0], result.output, result.exit_code

    return parse


@pytest.mark.parametrize(("words", "settings"), EFFECTS, ids=lambda value: str(value))
def test_an_option_becomes_settings_of_the_ranks(
    parsed: Any, words: list[str], settings: dict[str, str]
) -> None:
    job, said, _ = parsed("-np", "2", *words, "python", "train.py", "--np", "9")
    assert job.variables == settings
    assert said == ""
    assert list(job.command) == ["python", "train.py", "--np", "9"]
    assert len(job.slots) == 2


@pytest.mark.parametrize("words", WITHOUT_EFFECT, ids=lambda value: value[0])
def test_an_option_without_effect_is_named_once_with_the_reason(parsed: Any, words: list[str]) -> None:
    job, said, _ = parsed("-np", "2", *words, "python")
    assert job.variables == {}
    assert said.count(f"{words[0]} has no effect: ") == 1
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("words", ELASTIC, ids=lambda value: value[0])
def test_an_option_of_elastic_jobs_is_refused_in_another_job(parsed: Any, words: list[str]) -> None:
    job, said, code = parsed("-np", "2", *words, "python")
    assert (job, code) == (None, 2)
    assert "is for elastic jobs: give --min-np, too." in " ".join(said.split())


def test_every_option_of_horovodrun_is_known() -> None:
    known = {option for one in run_module.run.params for option in (*one.opts, *one.secondary_opts)}
    assert len(HOROVODRUN.split()) == 71
    assert set(HOROVODRUN.split()) <= known


def test_every_option_of_horovods_table_has_a_case() -> None:
    tried = {words[0] for words, _ in EFFECTS} | {words[0] for words in [*WITHOUT_EFFECT, *ELASTIC]}
    for row in horovodrun_options.TUNABLES:
        assert {part for flag in row.flags for part in flag.split("/")} & tried, row.name
    for option in elastic_options.OPTIONS:
        assert option.flags[0] in {*tried, "--min-np", "--host-discovery-script"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-np", "0", "true"], "0 is not in the range"),
        (["-np", "2"], "which program?"),
        (
            ["-np", "9", "-H", "a:2,b:3", "true"],
            "-np 9: the hosts a:2,b:3 have 5 slots. Give them more (-H node1:4), or start fewer",
        ),
        (["-H", "a:b:c", "true"], "give node1:4,node2:4"),
        (["-H", "-oPort=1:1", "true"], "give node1:4,node2:4"),
        (["-H", "a:1", "--hostfile", "file", "true"], "exclude each other"),
        (["--gloo", "--mpi", "true"], "exclude each other"),
        (["--jsrun", "true"], "start ranks with jsrun itself"),
        (["--log-level", "LOUD", "true"], "give one of TRACE, DEBUG"),
        (["--cycle-time-ms", "-1", "true"], "give 0 or more"),
        (["--autotune-gaussian-process-noise", "2", "true"], "give 0 to 1"),
        (["--hostfile", "no-such-file", "true"], "cannot be read"),
        (["--no-such-option", "true"], "No such option"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_cure(parsed: Any, words: list[str], text: str) -> None:
    job, said, code = parsed(*words)
    assert (job, code) == (None, 2)
    assert text in said


def test_hosts_are_filled_in_their_order() -> None:
    hosts = parse_hosts("a:2,b:1,a:1,[fe80::1]:2")
    assert hosts == [Host("a", 3), Host("b", 1), Host("fe80::1", 2)]
    places = assign(hosts, 5)
    assert [(one.host, one.local_rank, one.local_size) for one in places] == [
        ("a", 0, 3),
        ("a", 1, 3),
        ("a", 2, 3),
        ("b", 0, 1),
        ("fe80::1", 0, 1),
    ]
    assert [(one.cross_rank, one.cross_size) for one in places] == [(0, 3), (0, 1), (0, 1), (1, 3), (2, 3)]
    assert len(assign(hosts, None)) == 6


def test_a_host_file_has_spaces_tabs_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "a\tslots=2 # two\n  b max_slots=9 slots = 3\nfe80::1 slots=1\n[fe80::2] slots=1\nc:4\nd\n"
    )
    hosts = [("a", 2), ("b", 3), ("fe80::1", 1), ("fe80::2", 1), ("c", 4), ("d", 1)]
    assert read_host_file(str(file)) == [Host(*one) for one in hosts]


@pytest.mark.parametrize(
    "line", ["a:1 slots=2", "-oPort=1 slots=2", "-a", "a slots=2x", "a max_slots=2", "a,b slots=2", "a 2"]
)
def test_a_wrong_line_of_a_host_file_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"write node1 slots=4|give node1:4,node2:4"):
        read_host_file(str(file))


def test_whole_numbers_of_the_configuration_file_may_have_a_point() -> None:
    found = config_file.options_of({"params": {"fusion_threshold_mb": 64.0, "cycle_time_ms": 2}}, "file")
    assert horovodrun_options.settings_of(found)[0] == {"RDMACOLL_BUCKET_BYTES": str(64 << 20)}


def test_the_configuration_file_gives_what_the_command_line_does_not(tmp_path: Path) -> None:
    # JSON is YAML, and json stands for the reader of YAML.
    (tmp_path / "yaml.py").write_text("import json\nYAMLError = ValueError\nsafe_load = json.loads\n")
    content = {
        "params": {"fusion_threshold_mb": 32, "cycle_time_ms": 1, "hierarchical_allreduce": True},
        "stall_check": {"enabled": True, "warning_time_seconds": 5},
        "logging": {"level": "INFO"},
        "controller": "gloo",
    }
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(content))
    path = f"{tmp_path}:{clean_environment()['PYTHONPATH']}"
    program = script(tmp_path, SHOW)
    words = ["-np", "1", "--fusion-threshold-mb", "16", "--config-file", str(file)]
    done = launch(*words, sys.executable, program, env={"PYTHONPATH": path})
    names = shown(done)[0]
    assert names["RDMACOLL_BUCKET_BYTES"] == str(16 << 20)
    assert names["RDMACOLL_ALLREDUCE_ALGORITHM"] == "hierarchical"
    assert (names["RDMACOLL_STALL_WARNING_S"], names["RDMACOLL_LOG"]) == ("5", "info")
    assert done.stderr.count("--cycle-time-ms has no effect") == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([1], "is no table of sections"),
        ({"params": {"fusion_mb": 1}}, "params.fusion_mb is unknown; known are params.fusion_threshold_mb"),
        ({"params": {"fusion_threshold_mb": float("inf")}}, "inf, not int"),
        ({"params": {"fusion_threshold_mb": float("nan")}}, "nan, not int"),
        ({"params": {"fusion_threshold_mb": True}}, "True, not int"),
        ({"params": {"fusion_threshold_mb": "much"}}, "'much', not int"),
        ({"params": 3}, "params is 3, and no table"),
        ({"controller": "ddl"}, "not gloo or mpi"),
    ],
)
def test_a_wrong_configuration_file_is_refused(content: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_file.options_of(content, "config.yaml")
    assert text in str(caught.value)


def test_without_a_reader_of_yaml_the_file_is_an_error_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match="pip install pyyaml"):
        config_file.read_config_file("config.yaml")


def test_what_is_there_is_shown_as_horovodrun_does() -> None:
    done = run_python("-m", "rdmacoll", "run", "--check-build")
    assert done.returncode == 0
    for line in (
        "Available Frameworks:",
        "Available Controllers:",
        "Available Tensor Operations:",
        "[X] Gloo",
    ):
        assert line in done.stdout


def test_mpi_prints_and_runs_mpiruns_line() -> None:
    done = launch(
        "-np", "2", "--mpi", "--mpi-args=--oversubscribe", "sh", "-c", "echo of $OMPI_COMM_WORLD_SIZE"
    )
    if "MPICH" not in done.stderr:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("of 2") == 2
    assert "rdmacoll run: mpirun " in done.stderr


def test_mpiruns_line_has_names_of_variables_and_no_values() -> None:
    line = mpirun_command(
        ["python", "train.py"],
        version="mpirun (Open MPI) 4.1.4",
        size=4,
        hosts=[Host("a", 2), Host("b", 2)],
        variables={"MY_TOKEN": "hidden", "OMPI_MCA_x": "1"},
        mpi_args="--map-by ppr:2:node",
        ssh=["-p", "2222"],
    )
    assert line[-4:] == ["--map-by", "ppr:2:node", "python", "train.py"]
    assert " ".join(line).find("-np 4 -H a:2,b:2 --bind-to none") > 0
    assert line[line.index("-x") + 1] == "MY_TOKEN"
    assert line.count("-x") == 1
    assert "hidden" not in " ".join(line)
    mpich = mpirun_command(["a"], version="HYDRA", size=4, hosts=[Host("a", 2), Host("b", 2)], variables={})
    assert mpich == ["mpirun", "-l", "-np", "4", "-hosts", "a,b", "-ppn", "2", "a"]


def test_the_rank_that_others_name_has_failed_first() -> None:
    blame = ["rdmacoll.errors.RankFailedError: rank 2 (node2, pid 5) left: ValueError."]
    by_0, by_2 = Ended(0, "a", 1), Ended(2, "b", 3)
    assert first_failure({0: by_0}, {0: blame}) == (by_0, False)
    assert first_failure({0: by_0, 2: by_2}, {0: blame}) == (by_2, True)
    assert first_failure({0: by_0, 2: Ended(2, "b", 0)}, {0: blame}) == (by_0, True)
    assert first_failure({1: Ended(1, "a", 0)}, {}) == (None, True)
    circle = ["RankFailedError: rank 0 (node1, pid 4) left."]
    assert first_failure({0: by_0, 2: by_2}, {0: blame, 2: circle})[1]


def test_the_lines_of_a_failed_rank_begin_with_its_last_traceback() -> None:
    trace = "Traceback (most recent call last):"
    chained = [trace, "  a", "KeyError", "", "During handling of the above exception, another exception", ""]
    errors = ["noise", trace, "  old", "OldError", "noise", *chained, trace, "  b", "ValueError"]
    assert lines_of(errors, [])[0] == trace
    assert lines_of(errors, [])[1:] == [*chained[1:], trace, "  b", "ValueError"]
    assert lines_of([], ["1", "2"]) == ["1", "2"]
    long = lines_of([trace, *map(str, range(100))], [])
    assert (len(long), long[-1]) == (51, "99")


def test_a_line_without_end_is_written_in_parts(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output = Output(1)
    for _ in range(20):
        output.write(0, STDOUT, b"x" * (1 << 18))
    output.finish(0)
    lines = capfdbinary.readouterr().out.splitlines()
    assert sum(line.count(b"x") for line in lines) == 20 << 18
    assert {line[:12] for line in lines} == {b"[0]<stdout>:"}
    assert len(lines) == 4
    assert len(output.tail(0, STDOUT)[0]) < 5000


def test_timeouts_come_from_horovods_variable_too() -> None:
    job = job_options({"num_proc": 1}, ["true"], {"HOROVOD_START_TIMEOUT": "17"})
    assert (job.start_timeout_s, job.variables) == (17.0, {"RDMACOLL_START_TIMEOUT_S": "17"})


def test_hosts_are_those_of_lsfs_job_unless_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "n1 2 n2 1 n1 1"}
    options = job_options({"num_proc": None}, ["true"], job)
    assert [slot.host for slot in options.slots] == ["n1", "n1", "n1", "n2"]
    assert "LSB_MCPU_HOSTS names the hosts n1:3,n2:1. -H names others." in capsys.readouterr().err
    assert len(job_options({"num_proc": 2}, ["true"], job).slots) == 2
    with pytest.raises(ConfigError, match=r"-np 5: the hosts n1:3,n2:1 have 4 slots"):
        job_options({"num_proc": 5}, ["true"], job)
    assert [slot.host for slot in job_options({"hosts": "a"}, ["true"], job).slots] == ["a"]
    (tmp_path / "hosts").write_text("n1\nn2\nn1\n")
    by_file = {"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")}
    options = job_options({"num_proc": 3}, ["true"], by_file)
    assert [slot.host for slot in options.slots] == ["n1", "n1", "n2"]
    assert [slot.host for slot in job_options({"num_proc": 1}, ["true"], {}).slots] == ["localhost"]


@pytest.mark.parametrize("text", ["n1", "n1 x", "n1 4 n2"])
def test_hosts_of_lsf_that_cannot_be_read_are_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LSB_MCPU_HOSTS=.* Name hosts with -H"):
        job_options({"num_proc": 1}, ["true"], {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": text})
    missing = {"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": str(tmp_path / "missing")}
    with pytest.raises(ConfigError, match="LSB_DJOB_HOSTFILE"):
        job_options({"num_proc": 1}, ["true"], missing)
