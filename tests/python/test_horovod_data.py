"""`horovod.tensorflow.data`: a job of ranks prepares the data of another job, by tf.data's own service."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Run, run
from test_horovod_package import COMPAT, python

COMPUTE = f"""
import sys
sys.path.insert(0, {str(COMPAT)!r})
from horovod.tensorflow.data.compute_worker import main
main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
"""
TRAINING = f"""
import sys
sys.path.insert(0, {str(COMPAT)!r})
import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service
from ranks import report

hvd.init()
config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
dataset = tf.data.Dataset.range(100).map(lambda one: 3 * one)
if config.dispatcher_side == "compute":
    is_shared = config.dispatchers == 1
    if is_shared:  # each of the two workers makes a whole pass
        whole = dataset.send_to_data_service(config, hvd.rank(), hvd.size(), "parallel_epochs")
        assert sorted(map(int, whole)) == sorted(2 * [3 * one for one in range(100)])
    dataset = dataset.send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=is_shared)
    found = sorted(int(one) for one in dataset)
else:
    try:
        dataset.send_to_data_service(config, hvd.rank())
    except RuntimeError as error:
        assert "tf_data_service" in str(error)
    with tf_data_service(config, hvd.rank()) as address:
        distribute = tf.data.experimental.service.distribute("distributed_epoch", address, job_name="job")
        found = sorted(int(one) for one in dataset.apply(distribute))
        hvd.barrier()
report(found)
hvd.barrier()
if hvd.rank() == 0:
    config.compute_client().shutdown()
"""


@pytest.mark.parametrize(
    ("dispatchers", "side"),
    [
        (1, "compute"),
        pytest.param(2, "compute", marks=pytest.mark.slow),
        pytest.param(1, "training", marks=pytest.mark.slow),
        pytest.param(2, "training", marks=pytest.mark.slow),
    ],
)
def test_another_job_prepares_each_element_once(tmp_path: Path, dispatchers: int, side: str) -> None:
    file = tmp_path / "service.json"
    arguments = [str(dispatchers), side, str(file)]
    with Run(COMPUTE, 2, arguments=arguments, preloaded=True) as compute:
        reports = run(TRAINING, 2, arguments=[str(file)], deadline_s=300, preloaded=True).succeeded()
        compute.finish(60).succeeded()
    assert file.stat().st_mode & 0o777 == 0o600
    passes = [sorted(one for found in reports for one in found)] if dispatchers == 1 else reports
    assert passes == [[3 * one for one in range(100)]] * len(passes)


def test_the_registry_answers_those_alone_that_know_the_key() -> None:
    program = """
import socket
from horovod.runner.common.service.compute_service import ComputeClient, ComputeService

def raised(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")

service = ComputeService(2, 1, b"key")
own = ComputeClient(service.addresses(), b"key")
stranger = ComputeClient(service.addresses(), b"other")
assert "does not know" in raised(ConnectionError, stranger.register_dispatcher, 0, "grpc://stranger:1")
assert "within 0.1 s" in raised(TimeoutError, own.wait_for_dispatcher_registration, 0, 0.1)
own.register_dispatcher(0, "grpc://own:1")
own.register_dispatcher(0, "grpc://own:1")
assert own.wait_for_dispatcher_registration(0, 10) == "grpc://own:1"
assert "grpc://own:1" in raised(ValueError, own.register_dispatcher, 0, "grpc://own:2")
for call, more in ((own.register_dispatcher, ("",)), (own.wait_for_dispatcher_worker_registration, (1,))):
    raised(IndexError, call, 2, *more)
own.register_worker_for_dispatcher(0, 0)
own.wait_for_dispatcher_worker_registration(0, 10)
raised(TimeoutError, own.wait_for_dispatcher_worker_registration, 1, 0.1)
# A line that a stranger has seen counts in no other connection.
from horovod.runner.common.service import compute_service
old = compute_service._sealed(b"key", b"request", b"old", {"call": "shutdown", "arguments": []})
with socket.create_connection(service.addresses()["all"][-1], 10) as connection:
    file = connection.makefile("rwb")
    file.readline()
    file.write(old)
    file.flush()
    assert file.readline() == b""
raised(ValueError, ComputeService, 0, 1, b"key")
own.shutdown()
own.wait_for_shutdown()
service.shutdown()
raised(ConnectionError, own.shutdown)
"""
    done = python(program)
    assert done.returncode == 0, done.stderr
