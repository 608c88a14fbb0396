"""Tests the states of horovod.tensorflow.elastic, in a world that stays as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tf_common import close, raised, run_all

import rdmacoll.tensorflow.keras
from rdmacoll.tensorflow import elastic

elastic.init()
RANK, SIZE = elastic.rank(), rdmacoll.size()
callbacks = rdmacoll.tensorflow.keras.elastic


def check_objects_are_saved_restored_and_those_of_rank_0() -> None:
    state = elastic.ObjectState(elastic.broadcast_object, elastic.rank, step=RANK, names=["a"])
    state.sync()
    assert (state.step, state.names) == (0, ["a"])
    state.names.append("b")
    state.restore()
    assert state.names == ["a"]
    state.names.append("b")
    state.commit()
    state.step = 7
    state.restore()
    assert (state.step, state.names) == (0, ["a", "b"])
    state.step = 8 + RANK  # as of a checkpoint, or of a world that ends between two commits
    state.sync()
    assert state.step == 8
    state.restore()
    assert state.step == 8


def check_variables_are_saved_restored_and_those_of_rank_0() -> None:
    variable = tf.Variable([float(RANK)])
    state = elastic.TensorFlowState([variable], epoch=RANK)
    variable.assign([9.0])
    state.restore()
    close(variable.numpy(), [RANK])
    state.sync()
    close(variable.numpy(), [0.0])
    assert state.epoch == 0
    variable.assign([3.0])
    state.save()
    variable.assign([4.0])
    state.restore()
    close(variable.numpy(), [3.0])


def check_ranks_with_other_numbers_of_variables_are_told_the_cure() -> None:
    """A model that is not built has fewer of them, on a worker that has just come."""
    state = elastic.TensorFlowState([tf.Variable(float(RANK)) for _ in range(1 + min(RANK, 1))])
    if SIZE == 1:
        state.sync()
        return
    text = str(raised(rdmacoll.ConfigError, state.sync))
    assert "the state has 1 variable on rank 0, and 2 on rank 1: build the model before its state" in text


def check_a_session_has_the_variables_of_its_graph() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=float(RANK))
        session.run(tf.compat.v1.global_variables_initializer())
        state = elastic.TensorFlowState(session=session)
        state.sync()
        close(session.run(variable), 0.0)
        variable.load(5.0, session)
        state.restore()
        close(session.run(variable), 0.0)


def check_a_model_of_a_graph_has_its_values_in_the_session() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=float(RANK))
        slot = tf.compat.v1.get_variable("s", initializer=[float(RANK), 1.0])
        session.run(tf.compat.v1.global_variables_initializer())
        model = SimpleNamespace(variables=[weight], optimizer=SimpleNamespace(variables=lambda: [slot]))
        state = callbacks.KerasState(model, epoch=RANK)
        state.sync()
        close(session.run(slot), [0.0, 1.0])
        session.run([weight.assign(3.0), slot.assign([3.0, 3.0])])
        state.commit()
        session.run(weight.assign(4.0))
        state.restore()
        close(session.run(weight), 3.0)
        close(session.run(slot), [3.0, 3.0])
        assert state.epoch == 0


def model_of(value: float) -> Any:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign([[value]])
    optimizer = rdmacoll.tensorflow.keras.DistributedOptimizer(keras.optimizers.SGD(0.0, momentum=0.5))
    model.compile(optimizer, "mse")
    return model


def check_models_train_from_a_state_of_rank_0() -> None:
    for kind in (elastic.TensorFlowKerasState, callbacks.KerasState):
        model = model_of(float(RANK + 1))
        state = kind(model, batch=0, epoch=0)

        @elastic.run
        def train(state: Any, epochs: int) -> Any:
            listed = [
                callbacks.CommitStateCallback(state, 2),
                callbacks.UpdateBatchStateCallback(state),
                callbacks.UpdateEpochStateCallback(state),
            ]
            data = np.ones((4, 1)), np.ones((4, 1))
            return state.model.fit(*data, 1, epochs, 0, callbacks=listed)

        train(state, 2)
        close(np.asarray(model.layers[0].kernel), [[1.0]])
        assert (state.epoch, state.batch) == (2, 0)
        state.save()
        train(state, 1)
        assert state.epoch == 3
        model.layers[0].kernel.assign([[8.0]])
        state.restore()
        close(np.asarray(model.layers[0].kernel), [[1.0]])


def check_a_commit_has_the_numbers_of_its_batch_and_its_epoch() -> None:
    """Otherwise an epoch is trained twice, if the world changes at its end."""
    for order in ((0, 1, 2), (2, 1, 0)):
        state = elastic.ObjectState(elastic.broadcast_object, elastic.rank, batch=0, epoch=0)
        seen: list[tuple[int, int]] = []
        state.save = lambda state=state, seen=seen: seen.append((state.epoch, state.batch))
        listed = [
            callbacks.CommitStateCallback(state, 2),
            callbacks.UpdateBatchStateCallback(state),
            callbacks.UpdateEpochStateCallback(state),
        ]
        data = np.ones((4, 1)), np.ones((4, 1))
        other = callbacks.UpdateEpochStateCallback(elastic.ObjectState(lambda one: one, lambda: 0, epoch=5))
        used = [*(listed[place] for place in order), other]
        model = model_of(1.0)
        model.fit(*data, 1, 2, 0, callbacks=used)
        assert seen == [(0, 1), (0, 3), (1, 0), (1, 1), (1, 3), (2, 0)], (order, seen)
        model.fit(*data, 1, 3, 0, callbacks=used, initial_epoch=state.epoch)
        assert seen[6:] == [(2, 1), (2, 3), (3, 0)], (order, seen)
        model.fit(*data, 1, 3 - state.epoch, 0, callbacks=used)
        assert (state.epoch, other.state.epoch) == (3, 8)
        for batch, steps in ((1, 3), (9, 1)):  # an epoch has 4 steps, and more in a smaller world
            state.batch = batch
            listed[1].set_params({"steps": 4})
            listed[1].on_train_begin()
            listed[1].on_epoch_begin(0)
            assert listed[1].params["steps"] == steps


def check_a_state_has_the_slots_of_an_optimizer_that_never_stepped() -> None:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(rdmacoll.tensorflow.keras.DistributedOptimizer(optimizer), "mse")
    state = elastic.TensorFlowKerasState(model)
    state.sync()
    first = [np.array(variable) for variable in state.variables()]
    model.fit(np.ones((4, 1)), np.zeros((4, 1)), 1, 2, 0)
    assert not np.array_equal(first[0], np.array(state.variables()[0]))
    state.restore()
    for value, variable in zip(first, state.variables(), strict=True):
        assert np.array_equal(value, np.array(variable)), variable.path


def check_a_state_without_the_variables_of_its_model_is_refused() -> None:
    late = elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1))
    late.model(np.ones((1, 1)))
    text = str(raised(rdmacoll.ConfigError, late.restore))
    assert "the state has 4 variables, and its last commit 2: make the state when model" in text


def check_a_reset_calls_what_was_registered() -> None:
    state = elastic.ObjectState(elastic.broadcast_object, elastic.rank)
    called: list[int] = []
    state.register_reset_callbacks([lambda: called.append(1)])
    state.on_reset()
    assert called == [1]
    assert issubclass(elastic.HorovodInternalError, RuntimeError)
    raised(AttributeError, lambda: state.step)


run_all(globals())
