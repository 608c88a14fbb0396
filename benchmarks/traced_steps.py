"""The training programs that `step_trace.py` traces: what one rank runs, and the stamps of its steps.

All of them have the 161 variables of ResNet-50 in 54 layers. The backward pass of a layer waits, as beside an
accelerator, and then makes the layer's gradients. TensorFlow stamps each gradient and each result with its
own operation `Timestamp`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rdmacoll.benchmarks import resnet50
from rdmacoll.benchmarks.team_rank.tensorflow_ops import WARM_UP_STEPS, gradients_of, pause

BACKWARD_S = 0.1
WARM_UP, STEPS = WARM_UP_STEPS, 15

SERVERS = {"fit-servers": True, "fit-asynchronous": False}  # by program: whether its servers are synchronous
PROGRAMS = ("operations", "fit", "loop", *SERVERS)

# The stamps of one step in ms: (begin and all gradients, the first result of each bucket, end).
StepStamps = tuple[list[float], list[float], float]


def traced_steps(program: str, threads: int, folder: Path) -> dict[str, Any] | None:
    """Runs a program as a rank. Returns its steps with clock times in ms, or None for other ranks than 0.
    threads: how many operations TensorFlow runs at once; 0: its default."""
    import tensorflow as tf

    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    import rdmacoll

    if program in SERVERS:
        rdmacoll.init(mode="ps", num_servers=1, sync=SERVERS[program])  # a server ends here
    else:
        rdmacoll.init()
    timeline = folder / "timeline.json"
    run = {"operations": _operations, "loop": _loop}.get(program, _fit)
    with tempfile.TemporaryDirectory() as own:
        path = timeline if rdmacoll.rank() == 0 else Path(own) / timeline.name
        indices, stamps = run(
            tf,
            lambda: rdmacoll.tensorflow.start_timeline(str(path)),
            lambda: rdmacoll.tensorflow.stop_timeline(),
        )
    is_first = rdmacoll.rank() == 0
    rdmacoll.shutdown()
    if not is_first:
        return None
    events = json.loads(timeline.read_text()) if program != "fit-asynchronous" else []
    return {"program": program, "threads": threads, "indices": indices, "stamps": stamps, "events": events}


Traced = tuple[list[list[int]], list[StepStamps]]
Call = Callable[[], None]


def _operations(tf: Any, start: Call, stop: Call) -> Traced:
    """The gradients' operations alone, without variables."""
    import rdmacoll
    from rdmacoll.optimizer.reduce import GradientReducer

    reducer = GradientReducer(name="step", op=rdmacoll.Sum)
    shapes = resnet50.shapes()
    values = [tf.fill(shape, 1.0) for shape in shapes]
    layers = resnet50.layers_backward(shapes)
    wait = pause(tf, "wait", BACKWARD_S / len(layers))

    def traced(one: Any) -> Any:
        begin = _stamp(tf, one)
        gradients = gradients_of(tf, values, layers, wait, one)
        ready = [_stamp(tf, gradient) for gradient in gradients]
        sums = reducer(gradients)
        back = [_stamp(tf, sums[bucket.indices[0]]) for bucket in reducer.buckets]
        return tf.stack([begin, *ready]), tf.stack(back), _stamp(tf, *sums)

    # A tf.function would run the stamps, which have state, one after the other in the order of the program.
    step = tf.compat.v1.wrap_function(traced, [tf.TensorSpec((), tf.float32)])
    one = tf.constant(1.0)
    for _ in range(WARM_UP):
        step(one)
    start()
    stamps = [[1e3 * value.numpy() for value in step(one)] for _ in range(STEPS)]
    stop()
    return (
        [list(bucket.indices) for bucket in reducer.buckets],
        [(ready.tolist(), back.tolist(), float(end)) for ready, back, end in stamps],
    )


def _fit(tf: Any, start: Call, stop: Call) -> Traced:
    """`fit` of Keras 3 with a wrapped optimizer."""
    import keras

    import rdmacoll

    stamps = _Stamps(tf)
    model = _model(tf)
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1e-3))
    model.compile(optimizer=optimizer, loss=_loss, jit_compile=False)

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == WARM_UP:
                start()
            stamps.begin_of_step()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            stamps.end_of_step()

    batch = tf.ones((1, 1))
    data = tf.data.Dataset.from_tensors((batch, batch)).repeat()
    steps = WARM_UP + STEPS
    model.fit(data, epochs=1, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[Recorder()])
    stop()
    return stamps.found()


def _loop(tf: Any, start: Call, stop: Call) -> Traced:
    """A loop of its own with `DistributedGradientTape`."""
    import keras

    import rdmacoll

    stamps = _Stamps(tf)
    model = _model(tf)
    optimizer = keras.optimizers.SGD(1e-3)

    @tf.function
    def step(batch: Any) -> Any:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = _loss(batch, model(batch, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    batch = tf.ones((1, 1))
    for number in range(WARM_UP + STEPS):
        if number == WARM_UP:
            start()
        stamps.begin_of_step()
        step(batch)
        stamps.end_of_step()
    stop()
    return stamps.found()


def _loss(ones: Any, output: Any) -> Any:
    """Has a gradient of ones. It is no constant, since TensorFlow would run the layers' waits only once."""
    return (output * ones)[0, 0]


def _stamp(tf: Any, *after: Any) -> Any:
    with tf.control_dependencies(after):
        return tf.timestamp()


class _Stamps:
    """The stamps of a step in a tf.function, which leaves them in a variable."""

    def __init__(self, tf: Any) -> None:
        from tensorflow.python.framework import auto_control_deps

        from rdmacoll.optimizer import server_requests
        from rdmacoll.optimizer.reduce import GradientReducer

        # A tf.function runs operations with state one after the other in the order of the program.
        auto_control_deps.SKIPPED_ORDER_INSENSITIVE_STATEFUL_OPS |= {"Timestamp"}
        self.tf = tf
        self._begin = 0.0
        self._indices: list[list[int]] = []
        self._steps: list[StepStamps] = []
        self._times = tf.Variable(tf.zeros(1, tf.float64), shape=tf.TensorShape([None]))
        reduced, exchange = GradientReducer._reduced, server_requests.exchange

        def stamped_reduced(reducer: Any, gradients: Sequence[Any], variables: Any) -> Any:
            ready = self._ready(gradients)
            results = reduced(reducer, gradients, variables)
            self._keep(ready, results, [list(bucket.indices) for bucket in reducer.buckets])
            return results

        def stamped_exchange(gradients: Sequence[Any], *others: Any) -> Any:
            ready = self._ready(gradients)
            results, requests = exchange(gradients, *others)
            everything = list(range(len(gradients)))
            self._keep(ready, results, [list(one.indices) for one in requests] or [everything])
            return results, requests

        GradientReducer._reduced = stamped_reduced  # type: ignore[method-assign]
        server_requests.exchange = stamped_exchange

    def _ready(self, gradients: Sequence[Any]) -> list[Any]:
        return [_stamp(self.tf, gradient) for gradient in gradients]

    def _keep(self, ready: list[Any], results: Sequence[Any], indices: list[list[int]]) -> None:
        self._indices = indices
        back = [_stamp(self.tf, results[bucket[0]]) for bucket in indices]
        self._times.assign(self.tf.stack([*ready, *back]))

    def begin_of_step(self) -> None:
        """Notes the time. A stamp in the function could wait for its only thread."""
        self._begin = 1e3 * time.time()

    def end_of_step(self) -> None:
        """Notes the stamps of the step that ends now."""
        end, times = 1e3 * time.time(), (1e3 * self._times.numpy()).tolist()
        split = len(times) - len(self._indices)
        self._steps.append(([self._begin, *times[:split]], times[split:], end))

    def found(self) -> Traced:
        """The gradients of each bucket, and the steps after the warm-up."""
        return self._indices, self._steps[WARM_UP:]


def _model(tf: Any) -> Any:
    """A model of layers whose backward pass waits."""
    import keras

    shapes = resnet50.shapes()
    layers = resnet50.layers_backward(shapes)[::-1]
    seconds = BACKWARD_S / len(layers)

    def nap(one: Any) -> Any:
        time.sleep(seconds)
        return one

    class Waiting(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, own_shapes: Sequence[Sequence[int]]) -> None:
            super().__init__()
            self._own_shapes = own_shapes
            self._values = [tf.ones(shape) for shape in own_shapes]

        def build(self, _: Any) -> None:
            self._own = [self.add_weight(shape=shape, initializer="zeros") for shape in self._own_shapes]

        def call(self, inputs: Any) -> Any:
            @tf.custom_gradient
            def same(value: Any, *weights: Any) -> Any:
                def gradient(upstream: Any) -> Any:
                    # Requests to asynchronous servers run after earlier operations with state.
                    (one,) = tf.numpy_function(nap, [upstream], [tf.float32], stateful=False)
                    one.set_shape(upstream.shape)
                    scalar = tf.reshape(one, (-1,))[0]
                    return (one, *(values * scalar for values in self._values))

                return tf.identity(value), gradient

            return same(inputs, *(tf.convert_to_tensor(weight) for weight in self._own))

    waiting = [Waiting([shapes[index] for index in layer]) for layer in layers]
    return keras.Sequential([keras.Input((1,), batch_size=1), *waiting])
