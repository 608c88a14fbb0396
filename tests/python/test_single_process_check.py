"""Refused worlds of one, and the names of jobs, from launchers' variables."""

from __future__ import annotations

import json

import pytest

from rdmacoll._start import launch
from rdmacoll._start.bootstrap import find_start
from rdmacoll.errors import ConfigError

BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "a[1-4]"}
HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4"}
STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
STEP["SLURM_JOB_NODELIST"] = "n[1-2]"
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}


def tf_config(**cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}


MORE = [
    (HOROVOD, r"HOROVOD_RANK=1 and HOROVOD_SIZE=4 come from a launcher of Horovod .* no address of rank 0"),
    ({"HOROVOD_RANK": "2"}, "HOROVOD_RANK=2 come from"),
    (BATCH, "SLURM_NTASKS=8 says that Slurm's job 77 has several tasks, but srun has not started"),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, "SLURM_JOB_NUM_NODES=2"),
    ({"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "4"}, "SLURM_NTASKS_PER_NODE=4"),
    (
        {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "n1 4 n2 4 n3 2"},
        r"LSB_MCPU_HOSTS says that LSF's job 9 has 3 hosts \(n1 to n3\), but no launcher",
    ),
    ({"PMIX_RANK": "3"}, "PMIX_RANK=3 says that a PMIx launcher .* PMIX_SIZE is not set"),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2 .* OMPI_COMM_WORLD_RANK is not set"),
    ({"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "0"}, "FLUX_JOB_SIZE=2 .* FLUX_TASK_RANK is 0"),
    (tf_config(worker=["a:1", "b:1"]), "TF_CONFIG names 2 workers"),
    (tf_config(chief=["a:1"], worker=["b:1"], ps=["c:1"]), "TF_CONFIG names 2 workers"),
]


@pytest.mark.parametrize(("environ", "words"), MORE)
def test_variables_that_say_more_than_one_process_end_a_world_of_one(environ, words):
    with pytest.raises(ConfigError, match=words) as caught:
        find_start(environ=environ)
    assert str(caught.value).endswith("For one process alone, set RDMACOLL_SIZE=1.")
    assert "RDMACOLL_RENDEZVOUS" in str(caught.value)


@pytest.mark.parametrize(("environ", "words"), MORE)
def test_a_size_of_one_that_is_set_allows_a_world_of_one(environ, words):
    start = find_start(environ={**environ, "RDMACOLL_SIZE": "1"})
    assert (start.launch.rank, start.launch.size) == (0, 1)


@pytest.mark.parametrize(
    "environ",
    [
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "1"},
        {"SLURM_JOB_ID": "7"},
        {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "n1 16"},  # the cores of one process
        {"LSB_JOBID": "9"},
        {"LSB_MCPU_HOSTS": "n1 4 n2 4"},  # no job
        {"SLURM_NTASKS": "4"},  # no job: an option for sbatch
        {"PMIX_RANK": "0"},
        {"HOROVOD_FUSION_THRESHOLD": "64"},
        tf_config(worker=["a:1"], ps=["b:1"]),
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": '{"cluster": {"worker": 3}}'},
        {"TF_CONFIG": '{"cluster": {"ps": [' * 20_000},
    ],
)
def test_variables_that_say_one_process_or_nothing_are_a_world_of_one(environ):
    assert find_start(environ=environ).launch.size == 1


def test_a_start_by_hand_or_by_srun_within_an_allocation_stays_as_it_is():
    hand = {"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "3", "RDMACOLL_RENDEZVOUS": "node1:4000"}
    assert find_start(environ={**BATCH, **HOROVOD, **hand}).launch.size == 3
    one = {**BATCH, **STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert find_start(environ=one).launch.describe() == "Slurm's srun: a world of one"


def test_horovods_variables_below_a_launcher_of_one_process_end_it_too():
    one = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    with pytest.raises(ConfigError, match="launcher of Horovod"):
        find_start(environ={**one, **HOROVOD})


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (STEP, "Slurm job 77 step 0"),
        ({**STEP, "SLURM_RESTART_COUNT": "2"}, "Slurm job 77 step 0, restart 2"),
        ({**STEP, "SLURM_HET_JOB_ID": "70"}, "Slurm job 70 step 0"),
        (TORCHRUN, ""),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, ""),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x1"}, "torchrun x1"),
        (
            {
                **TORCHRUN,
                "TORCHELASTIC_RUN_ID": "x1",
                "TORCHELASTIC_RESTART_COUNT": "3",
                "GROUP_WORLD_SIZE": "1",
            },
            "torchrun x1, restart 3",
        ),
        # One of two nodes may count a restart that the other does not, so the job's name has no count.
        (
            {
                **TORCHRUN,
                "TORCHELASTIC_RUN_ID": "x1",
                "TORCHELASTIC_RESTART_COUNT": "3",
                "GROUP_WORLD_SIZE": "2",
            },
            "torchrun x1",
        ),
    ],
)
def test_the_launcher_that_gave_the_rank_names_the_job(environ, job):
    assert find_start(environ=environ).launch.job == job


def test_no_other_launchers_name_is_taken():
    hand = {"RDMACOLL_RANK": "1", "RDMACOLL_SIZE": "3", "RDMACOLL_RENDEZVOUS": "node1:4000"}
    around = {**STEP, "PMIX_NAMESPACE": "p1", "TORCHELASTIC_RUN_ID": "x1"}
    assert find_start(environ={**around, **hand}).launch.job == ""
    assert find_start(environ={**STEP, **TORCHRUN, "TORCHELASTIC_RUN_ID": "x1"}).launch.job == "torchrun x1"
    assert launch.by_mpi({"PMI_SIZE": "2", "PMI_RANK": "1", **around}).job == "PMIX_NAMESPACE=p1"
