"""The program of the ranks of a compute job:
`horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker FILE`."""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
from horovod.runner.common.service.compute_service import ComputeService
from horovod.runner.common.util import secret
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int = 60) -> None:
    """Runs this rank of a compute job, until a training ends it. Rank 0 writes `configfile`.

    timeout: seconds that the parts wait for each other. Raises ValueError if the ranks cannot be divided
    among the dispatchers.
    """
    hvd.init()
    if dispatchers < 1 or hvd.size() % dispatchers:
        raise ValueError(f"{hvd.size()} ranks for {dispatchers} dispatchers: give each as many ranks.")
    if dispatcher_side not in ("compute", "training"):
        raise ValueError(f'dispatcher_side={dispatcher_side!r}: "compute" or "training".')
    workers = hvd.size() // dispatchers
    service = config = None
    if hvd.rank() == 0:
        key = secret.make_secret_key()
        service = ComputeService(dispatchers, workers, key)
        addresses = service.addresses()
        config = TfDataServiceConfig(dispatchers, workers, dispatcher_side, addresses, key, timeout)
        config.write(configfile)
    try:
        found = hvd.broadcast_object(config and config.to_dict(), name="TfDataServiceConfig")
        compute_worker_fn(TfDataServiceConfig.from_dict(found), timeout)
    finally:
        if service is not None:
            service.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configfile", help="the file by which a training finds this job")
    parser.add_argument(
        "--dispatchers", type=int, default=1, help="1, or the number of ranks of the training"
    )
    parser.add_argument("--dispatcher-side", choices=("compute", "training"), default="compute")
    parser.add_argument(
        "--timeout", type=int, default=60, help="seconds to wait for the parts of the service"
    )
    given = parser.parse_args()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
