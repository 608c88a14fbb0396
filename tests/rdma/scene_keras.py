"""Two ranks train with Keras 3 over RDMA, then over TCP: the weights are the same to the bit."""

from __future__ import annotations

from ranks import run

from rdma.scene import DEVICES, SMALL_POOL, Traffic, main

# The import of TensorFlow is slow, so one process trains over both transports. With two ranks, there is only
# one order of additions.
PROGRAM = """
import hashlib, os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import rdmacoll
from ranks import report

rank = int(os.environ["RDMACOLL_RANK"])
DEVICES = sys.argv[1:]

def train(transport):
    # Who names a device asks for RDMA, and would be refused over TCP.
    rdmacoll.init(transport=transport, **({"device": DEVICES[rank]} if transport == "rdma" else {}))
    keras.utils.set_random_seed(5 + rdmacoll.rank())  # other weights and other data on each rank
    x = np.random.default_rng(rdmacoll.rank()).standard_normal((64, 20)).astype(np.float32)
    y = np.tanh(x @ np.linspace(-1, 1, 20, dtype=np.float32))[:, None]
    model = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(300, activation="tanh"),
                              keras.layers.Dense(200, activation="relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(1e-3)
    rdmacoll.DistributedOptimizer(optimizer)
    model.compile(optimizer=optimizer, loss="mse")
    first = rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, callbacks=[first])
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    found = {
        "transport": rdmacoll._world.world.describe()["transport"],
        "sent": rdmacoll.metrics()["bytes_sent"],
        "weights": hashlib.sha256(weights).hexdigest(),
        "losses": history.history["loss"],
    }
    rdmacoll.shutdown()
    return found

report([train("rdma"), train("tcp")], rank)
"""


def check_weights_are_those_of_tcp() -> None:
    traffic = Traffic()
    devices = [DEVICES[rank % len(DEVICES)] for rank in range(2)]
    reports = run(PROGRAM, 2, env=SMALL_POOL, arguments=devices, deadline_s=240).succeeded()
    for entry in reports:
        assert [each["transport"] for each in entry] == ["rdma", "tcp"], entry
        # 16 steps with gradients of 66,701 floats.
        assert entry[0]["sent"] >= 16 * 66_701 * 4, entry
        assert entry[0]["losses"][1] < entry[0]["losses"][0], entry
    assert len({each["weights"] for entry in reports for each in entry}) == 1, reports
    assert not traffic.silent(2)


if __name__ == "__main__":
    main(globals())
