"""A job that prepares data for a training, by tf.data's own service.

The ranks of the compute job are workers of the service. Its dispatchers are ranks of the compute job or of
the training. The job writes a file, by which the training finds it. Connections of tf.data's service prove
nothing, so use it in networks that you trust.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.runner.common.service.compute_service import Addresses, ComputeClient, own_address


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """The description of a compute job. timeout: seconds that others wait for its parts.

    dispatcher_side: "compute" or "training". With one dispatcher all ranks of the training share it.
    Otherwise each rank has its own.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Addresses
    key: bytes
    timeout: int = 60

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A client of the job's registry."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return {**dataclasses.asdict(self), "key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """The description with the values of `to_dict`."""
        addresses = {
            name: [(host, port) for host, port in some] for name, some in config["addresses"].items()
        }
        return TfDataServiceConfig(
            **{**config, "key": bytes.fromhex(config["key"]), "addresses": addresses},
        )

    def write(self, filename: str) -> None:
        """Writes the file at once. Only its owner can read it, since it has the key."""
        part = f"{filename}.{os.getpid()}"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self.to_dict(), file)
        os.replace(part, filename)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """The description in a file. wait_for_file_creation: waits until there is such a file."""
        while wait_for_file_creation and not os.path.exists(filename):
            time.sleep(0.2)
        with open(filename) as file:
            return TfDataServiceConfig.from_dict(json.load(file))


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """A context with the dispatcher of this rank of the training. Its value is the address for
    `tf.data.experimental.service.distribute`. Raises TimeoutError if the service does not start."""
    compute = compute_config.compute_client()
    number = rank if compute_config.dispatchers > 1 else 0
    dispatcher = None
    if compute_config.dispatcher_side == "training" and number == rank:
        dispatcher = _start_dispatcher(compute, number)
    try:
        address = compute.wait_for_dispatcher_registration(number, compute_config.timeout)
        compute.wait_for_dispatcher_worker_registration(number, compute_config.timeout)
        yield address
    finally:
        if dispatcher is not None:
            dispatcher._stop()


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """The dataset as the workers of the compute job prepare it. It is also a method of `tf.data.Dataset`.

    processing_mode: that of `tf.data.experimental.service.distribute`: "distributed_epoch" shares one pass
    between the workers, and "parallel_epochs" lets each worker make a whole one. reuse_dataset: the ranks
    share the elements of one pass. round_robin: they take them in turn, and `size` is their number.

    Raises RuntimeError if the dispatchers are ranks of the training: use `tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError('dispatcher_side="training": use `with tf_data_service(...)` around the training.')
    takes_turns = reuse_dataset and round_robin
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if takes_turns else None,
                num_consumers=size if takes_turns else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig, timeout: int | None = None) -> None:
    """The work of a rank of the compute job: a worker, and a dispatcher if one is due. Returns after
    `compute_config.compute_client().shutdown()`. timeout: seconds without a dispatcher after which the
    worker gives up."""
    hvd.init()
    compute, rank = compute_config.compute_client(), hvd.rank()
    number, place = divmod(rank, compute_config.workers_per_dispatcher)
    servers = []
    if compute_config.dispatcher_side == "compute" and place == 0:
        servers.append(_start_dispatcher(compute, number))
    address = compute.wait_for_dispatcher_registration(number, compute_config.timeout)
    port = _free_port()
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=address.partition("://")[2],
        worker_address=f"{own_address()}:{port}",
        port=port,
        heartbeat_interval_ms=1000,
        dispatcher_timeout_ms=timeout * 1000 if timeout else None,
    )
    servers.append(tf.data.experimental.service.WorkerServer(config))
    compute.register_worker_for_dispatcher(number, rank)
    compute.wait_for_shutdown()
    for server in reversed(servers):
        server._stop()


def _start_dispatcher(compute: ComputeClient, number: int) -> Any:
    server = tf.data.experimental.service.DispatchServer()
    port = server.target.rpartition(":")[2]  # the host in it is localhost
    compute.register_dispatcher(number, f"grpc://{own_address()}:{port}")
    return server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
