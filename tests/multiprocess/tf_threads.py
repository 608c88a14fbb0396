"""Trains two models at once, each in its own thread, in another order on each rank."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tf_common import SEED, run_all

import rdmacoll

rdmacoll.init(stall_warning_s=5, stall_error_s=20)
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
STEPS = 12
# The gradient of model m is (r + 1) * FACTORS[m] on rank r.
FACTORS = (1.0, 100.0)
MEANS = [factor * (SIZE + 1) / 2 for factor in FACTORS]
Step = Callable[[], Any]


def run_in_threads(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs each function in a thread. Returns the result or the exception of each."""
    results: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    return results


def variables(names: Sequence[str] = ("a", "b")) -> list[Any]:
    return [tf.Variable(tf.zeros(3), name=name) for name in names]


def gradient_of(model: int, variable: Any, **options: Any) -> Step:
    """Returns a step that computes the reduced gradient of that model."""

    def step() -> Any:
        with rdmacoll.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(variable * (RANK + 1.0) * FACTORS[model])
        return tape.gradient(loss, [variable])[0]

    return step


def repeated(
    make: Callable[[], Step], model: int, *, is_last_first: bool = False
) -> Callable[[], set[float]]:
    """Makes the step in its thread, and runs it often at random times. Returns its results."""

    def work() -> set[float]:
        clock = random.Random(SEED + 2 * RANK + model)
        if is_last_first == (model == RANK % 2):
            time.sleep(0.5)
        step, seen = make(), set()
        for _ in range(STEPS):
            time.sleep(clock.random() * 0.01)
            seen.add(float(step()[0]))
        return seen

    return work


def are_means(results: Sequence[Any]) -> None:
    assert results == [{mean} for mean in MEANS], results


def are_refused(results: Sequence[Any], *words: str) -> None:
    """Checks that a thread has the error, which ends the world. The other thread may end before the error.

    Then it begins a new world."""
    errors = [str(error) for error in results if isinstance(error, Exception)]
    reported = [error for error in errors if "two threads" in error]
    assert reported, results
    assert all(word in error for word in words for error in reported), (words, reported)
    rdmacoll.shutdown()
    rdmacoll.init(stall_warning_s=5, stall_error_s=20)


def tapes(own: Sequence[Any], *, is_traced: bool, prefix: str = "") -> list[Callable[[], Step]]:
    """Returns a function for each model that makes its step."""

    def make(model: int) -> Step:
        options = {"name": f"{prefix}{model}"} if prefix else {}
        step = gradient_of(model, own[model], **options)
        return tf.function(step) if is_traced else step

    return [functools.partial(make, model) for model in range(2)]


def all_repeated(makes: Sequence[Callable[[], Step]], **options: bool) -> list[Callable[[], Any]]:
    return [repeated(make, model, **options) for model, make in enumerate(makes)]


def check_tapes_are_told_apart_by_their_sources() -> None:
    for is_traced in (False, True):
        are_means(run_in_threads(all_repeated(tapes(variables(), is_traced=is_traced))))


def check_tapes_are_told_apart_by_their_names() -> None:
    for is_traced in (False, True):
        makes = tapes(variables(("same", "same")), is_traced=is_traced, prefix="model_")
        are_means(run_in_threads(all_repeated(makes)))


def check_the_main_thread_and_another_are_told_apart() -> None:
    own = variables(("same", "same"))
    results: list[Any] = [None, None]
    other = threading.Thread(
        target=lambda: results.__setitem__(1, repeated(lambda: gradient_of(1, own[1]), 1)())
    )
    other.start()
    results[0] = repeated(lambda: gradient_of(0, own[0]), 0)()
    other.join(90)
    are_means(results)


def check_functions_that_the_main_thread_has_traced_are_told_apart() -> None:
    steps = [make() for make in tapes(variables(("same", "same")), is_traced=True)]
    for step in steps:
        step()
    are_means(run_in_threads(all_repeated([lambda: steps[0], lambda: steps[1]])))


def check_tapes_that_nothing_tells_apart_are_an_error() -> None:
    for is_traced in (False, True):
        for is_last_first in (False, True):
            makes = tapes(variables(("same", "same")), is_traced=is_traced)
            results = run_in_threads(all_repeated(makes, is_last_first=is_last_first))
            are_refused(results, 'name="actor"', "same")


def check_one_name_for_two_models_is_an_error() -> None:
    own = variables()
    makes = [functools.partial(gradient_of, model, own[model], name="both") for model in range(2)]
    are_refused(run_in_threads(all_repeated(makes)), "'both'", 'name="actor"')


def optimizer_step(model: int, variable: Any, **options: Any) -> Step:
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)

    def step() -> Any:
        before = variable.numpy()
        gradient = tf.fill((3,), (RANK + 1.0) * FACTORS[model])
        optimizer.apply_gradients([(gradient, variable)])
        return np.round(before - variable.numpy(), 2)

    return step


def check_optimizers_that_threads_wrap_are_told_apart() -> None:
    named, own = variables(("same", "same")), variables()
    for makes in (
        [functools.partial(optimizer_step, model, own[model]) for model in range(2)],
        [functools.partial(optimizer_step, model, named[model], name=f"own_{model}") for model in range(2)],
    ):
        are_means(run_in_threads(all_repeated(makes, is_last_first=True)))


def check_optimizers_that_nothing_tells_apart_are_an_error() -> None:
    own = variables(("same", "same"))
    makes = [functools.partial(optimizer_step, model, own[model]) for model in range(2)]
    are_refused(run_in_threads(all_repeated(makes, is_last_first=True)), 'name="actor"')


def function_step(model: int, **options: Any) -> Step:
    @tf.function
    def step() -> Any:
        return rdmacoll.allreduce(tf.fill((3,), (RANK + 1.0) * FACTORS[model]), **options)

    return step


def check_functions_of_one_name_are_an_error() -> None:
    makes = [functools.partial(function_step, model) for model in range(2)]
    are_refused(run_in_threads(all_repeated(makes, is_last_first=True)), "'step'", "name=")
    makes = [functools.partial(function_step, model, name=f"mean_{model}") for model in range(2)]
    are_means(run_in_threads(all_repeated(makes)))


def graph_step(model: int) -> Step:
    with tf.Graph().as_default() as graph:
        variable = tf.compat.v1.get_variable("v", initializer=tf.zeros(3))
        optimizer = rdmacoll.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        loss = tf.reduce_sum(variable * (RANK + 1.0) * FACTORS[model])
        (gradient, _), *_ = optimizer.compute_gradients(loss, [variable])
        both = tf.stack([gradient, rdmacoll.allreduce(tf.fill((3,), (RANK + 1.0) * FACTORS[model]))])
        start = tf.compat.v1.global_variables_initializer()
    session = tf.compat.v1.Session(graph=graph)
    session.run(start)

    def step() -> Any:
        reduced, mean = session.run(both)
        assert np.array_equal(reduced, mean)
        return mean

    return step


def check_graphs_run_by_two_threads() -> None:
    steps = [graph_step(model) for model in range(2)]
    are_means(run_in_threads(all_repeated([lambda: steps[0], lambda: steps[1]])))
    makes = [functools.partial(graph_step, model) for model in range(2)]
    are_refused(run_in_threads(all_repeated(makes, is_last_first=True)))


def wrapped_sgd(**options: Any) -> Any:
    return rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.0), **options)


def check_models_that_threads_fit_begin_with_their_own_weights() -> None:
    def fitted(model: int) -> np.ndarray:
        network = keras.Sequential(
            [keras.layers.Input((2,)), keras.layers.Dense(1 + model, kernel_initializer="zeros")]
        )
        network.layers[0].set_weights([np.full((2, 1 + model), RANK + FACTORS[model]), np.zeros(1 + model)])
        network.compile(wrapped_sgd(), "mse")
        if model == RANK % 2:
            time.sleep(0.5)
        callback = rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0)
        data = np.ones((4, 2)), np.ones((4, 1 + model))
        network.fit(*data, batch_size=2, verbose=0, callbacks=[callback])
        return np.asarray(network.layers[0].kernel)

    results = run_in_threads([functools.partial(fitted, model) for model in range(2)])
    for model, found in enumerate(results):
        assert not isinstance(found, Exception), found
        np.testing.assert_array_equal(found, np.full((2, 1 + model), FACTORS[model]))


def check_a_model_that_differs_between_ranks_is_an_error_at_once() -> None:
    def fitted(model: int, optimizer: Any) -> np.ndarray:
        width = 2 + (RANK if model else 0)  # only the second model differs
        network = keras.Sequential([keras.layers.Input((width,)), keras.layers.Dense(1)])
        network.compile(optimizer or wrapped_sgd(name=f"model_{model}"), "mse")
        callbacks = [rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0)]
        callbacks += [rdmacoll.callbacks.MetricAverageCallback()]
        network.fit(np.ones((4, width)), np.ones((4, 1)), 2, verbose=0, callbacks=callbacks)
        return np.asarray(network.layers[0].kernel)

    for of_main_thread in (True, False):
        optimizers = [wrapped_sgd() if of_main_thread else None for _ in range(2)]
        results = run_in_threads([functools.partial(fitted, model, optimizers[model]) for model in range(2)])
        assert isinstance(results[0], np.ndarray), results
        assert isinstance(results[1], rdmacoll.MismatchError), results
        assert "ranks cannot be made equal: variable" in str(results[1]), results


def check_fits_of_one_name_are_an_error() -> None:
    begun = threading.Barrier(2)

    def fitted(model: int) -> None:
        network = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        network.compile(wrapped_sgd(name="both"), "mse")
        begun.wait(90)
        callbacks = [rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0)]
        network.fit(np.ones((4, 2)), np.ones((4, 1)), 2, verbose=0, callbacks=callbacks)

    are_refused(run_in_threads([functools.partial(fitted, model) for model in range(2)]), 'name="actor"')


def check_one_model_may_go_from_thread_to_thread() -> None:
    own, handed_over, ended = variables(), threading.Event(), threading.Event()
    step = gradient_of(0, own[0])
    keeper = threading.Thread(target=lambda: (step(), handed_over.set(), ended.wait(90)))
    keeper.start()  # this thread is alive while another one goes on
    assert handed_over.wait(90)
    results = run_in_threads([repeated(lambda: step, 0)])
    ended.set()
    keeper.join(90)
    assert results == [{MEANS[0]}], results


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
