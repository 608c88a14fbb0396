"""Checks of the broadcast between two updates, when several passes make an update."""

from __future__ import annotations

from tf_callback_trainings import IS_KERAS_3, close, dataset, fit, fit_alone, keras, network, weights_of
from tf_common import equal_on_all_ranks

import rdmacoll
from rdmacoll.keras.callbacks import BroadcastGlobalVariablesCallback


def check_half_filled_sums_stay_with_their_rank() -> None:
    if not IS_KERAS_3:
        return
    model, alone = network(), network()
    initial = [rdmacoll.engine.broadcast(w, 0) for w in weights_of(model)]
    alone.set_weights(initial)
    passes = {"gradient_accumulation_steps": 3}
    model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1, **passes)), "mse")
    alone.compile(keras.optimizers.SGD(0.1, **passes), "mse")
    for _ in range(3):  # each fit has 4 steps and leaves one or two passes for the next
        fit(model, BroadcastGlobalVariablesCallback(0))
        fit_alone(alone)
        if rdmacoll.rank() == 0:
            close(weights_of(model), weights_of(alone))


def check_half_filled_sums_come_from_the_root_alone() -> None:
    """Rank 0 alone goes on from a training that ended between two updates."""
    if not IS_KERAS_3:
        return
    for earlier in (1, 5):  # passes before, in the first update and in the second
        model, alone = network(), network()
        if rdmacoll.rank() == 0:
            alone.set_weights(weights_of(model))
        for one in (model, alone):
            one.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), "mse")
            if rdmacoll.rank() == 0:
                fit(one, data=dataset(7, earlier))
        model.compile(rdmacoll.DistributedOptimizer(model.optimizer), "mse")
        fit(model, BroadcastGlobalVariablesCallback(0))
        assert equal_on_all_ranks(weights_of(model)), earlier
        if rdmacoll.rank() == 0:
            fit_alone(alone)
            close(weights_of(model), weights_of(alone))
