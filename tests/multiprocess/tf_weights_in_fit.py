"""Tests that ranks whose weights differ in `fit` are detected after its first update or its epoch. Other
ranks train on."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tf_common import SEED, run_all
from tf_weights_common import (
    BATCH,
    KIND,
    LAST,
    RANK,
    STEPS,
    At,
    apart,
    broadcast,
    data,
    fit,
    keras,
    lines,
    moved,
    network,
    sgd,
    slots,
    with_settings,
)

import rdmacoll


def check_a_rate_that_a_rank_chooses_by_its_own_metric() -> None:
    plateau = keras.callbacks.ReduceLROnPlateau(
        monitor="mine", factor=0.5, patience=0, min_delta=0, mode="min"
    )

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["mine"] = 1.0 if RANK == LAST else -float(epoch)

    model, optimizer = network(), sgd()
    text = apart(
        lambda: fit(model, optimizer, broadcast(), Own(), plateau, epochs=4),
        f"after update {3 * STEPS} of DistributedOptimizer",
        "learning_rate",
        f"of rank {LAST} differs from rank 0's by up to 0.025",
    )
    assert "MetricAverageCallback" in text


def check_a_weight_that_one_rank_changes() -> None:
    act = At(lambda model: moved(model.layers[0].kernel), 1, batch=1)
    text = apart(
        lambda: fit(network(), sgd(), broadcast(), act), f"after update {STEPS} of", "kernel of rank 1"
    )
    assert "rank 0's by up to 0.2" in text or "rank 0's by up to 0.3" in text, text


def check_a_slot_that_one_rank_changes() -> None:
    # Without momentum's effect on the weights: a slot of another optimizer would have it later.
    act = At(lambda model: moved(slots(model.optimizer)[-1], 1e-2), LAST, batch=STEPS - 2)
    apart(lambda: fit(network(), sgd(), broadcast(), act), f"after update {STEPS} of", f"of rank {LAST}")


def check_a_count_that_one_rank_changes() -> None:
    act = At(lambda model: model.optimizer.iterations.assign(70), LAST, batch=0)
    apart(lambda: fit(network(), sgd(), broadcast(), act), "iter", f"of rank {LAST} differs", "by up to 69")


def check_a_forgotten_broadcast_is_found_behind_the_first_batch() -> None:
    apart(lambda: fit(network(), sgd()), "after update 2 of", "kernel of rank")
    call = functools.partial(fit, network(), sgd(), steps_per_execution=2)
    apart(call, f"after update {STEPS} of", "kernel of rank")


def check_eager_training_is_compared_too() -> None:
    fit(network(), sgd(), broadcast(), run_eagerly=True)
    act = At(lambda model: moved(model.layers[0].kernel), 1, batch=1)
    call = functools.partial(fit, network(), sgd(), broadcast(), act, run_eagerly=True)
    apart(call, f"after update {STEPS} of", "kernel of rank 1")


def check_statistics_and_seeds_may_differ() -> None:
    model = network()
    model.add(keras.layers.Dropout(0.3))
    fit(model, sgd(), broadcast(), epochs=4)
    moving = np.asarray(model.layers[1].moving_mean)
    others = rdmacoll.engine.allgather(moving[None])
    assert not np.array_equal(others[0], others[LAST])


def check_weights_that_one_rank_swaps_for_its_validation() -> None:
    class Swap(keras.callbacks.Callback):
        kept: list[np.ndarray]

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.kept = self.model.get_weights()
            if RANK == 1:
                self.model.set_weights([weight + 1 for weight in self.kept])

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch > 0:
                self.model.set_weights(self.kept)

    fit(network(), sgd(), broadcast(), Swap(), epochs=4)


def check_frozen_weights_count_until_a_rank_changes_them() -> None:
    model = network(seed=0)
    model.layers[0].trainable = False
    if RANK == 1:
        moved(model.layers[0].kernel)  # before any rank has compared
    apart(lambda: fit(model, sgd(), epochs=3), "kernel of rank 1", f"after update {STEPS} of")
    model = network()
    model.layers[0].trainable = False
    act = At(lambda model: moved(model.layers[0].kernel), 1, batch=0)
    fit(model, sgd(), broadcast(), act, epochs=3)


def check_a_model_that_is_built_in_its_first_batch() -> None:
    def late() -> Any:
        keras.utils.set_random_seed(SEED + RANK)
        return keras.Sequential([keras.layers.Dense(6), keras.layers.Dense(1)])

    fit(late(), sgd(), broadcast(), epochs=3)
    forgotten = apart(lambda: fit(late(), sgd(), epochs=3), "kernel of rank")
    assert "after update" in forgotten


def check_ranks_with_other_numbers_of_batches() -> None:
    steps, epochs = ((3, 4), (6, 2), (4, 3))[RANK % 3]
    fit(network(seed=0), sgd(), steps=steps, epochs=epochs)


def check_ranks_that_run_several_steps_at_once() -> None:
    act = At(lambda model: moved(model.layers[0].kernel), 1, batch=1)
    call = functools.partial(fit, network(seed=0), sgd(), act, epochs=2, steps_per_execution=2)
    apart(call, "kernel of rank 1", f"after update {2 * STEPS} of")


def check_accumulation_counts_updates() -> None:
    if KIND == "3":
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)
        optimizer = rdmacoll.DistributedOptimizer(optimizer)
    else:
        optimizer = sgd(backward_passes_per_step=2)
    fit(network(), optimizer, broadcast(), epochs=3)
    act = At(lambda model: moved(model.layers[0].kernel), 1, batch=2)
    call = functools.partial(fit, network(), sgd(backward_passes_per_step=2), broadcast(), act, epochs=3)
    apart(call, f"after update {STEPS // 2} of", "kernel of rank 1")


def check_a_step_that_overflows_on_one_rank_is_no_update() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for act in (None, At(lambda model: moved(model.layers[0].kernel), 1, batch=4)):
            model = network()
            model.compile(optimizer=sgd(), loss="mse")
            x, y = data()
            x[BATCH : 2 * BATCH] *= 1e30 if RANK == LAST else 1
            callbacks = [broadcast(), *([act] if act else [])]
            call = functools.partial(
                model.fit, x, y, batch_size=BATCH, epochs=4, shuffle=False, verbose=0, callbacks=callbacks
            )
            if act is None:
                call()
            else:
                apart(call, "kernel of rank 1")
    finally:
        keras.mixed_precision.set_global_policy("float32")


@with_settings(check_weights="first")
def check_the_first_update_alone() -> None:
    act = At(lambda model: moved(model.layers[0].kernel), 1, batch=1)
    fit(network(), sgd(), broadcast(), act, epochs=3)
    apart(lambda: fit(network(), sgd()), "after update 2 of")


@with_settings(check_weights="off")
def check_off_is_off() -> None:
    fit(network(), sgd())
    apart(lambda: rdmacoll.check_weights(network()), "in check_weights()")


@with_settings(check_weights_tolerance=0.5)
def check_a_small_difference_is_a_note() -> None:
    act = At(lambda model: moved(model.layers[-1].kernel, 1e-4), 1, batch=1)
    with lines() as said:
        fit(network(), sgd(), broadcast(), act, epochs=4)
    found = [line for line in said if "differs" in line]
    assert len(found) == int(RANK == 0), said
    assert all("CHECK_WEIGHTS_TOLERANCE=0.5 allows it" in line for line in found)
    act = At(lambda model: model.optimizer.iterations.assign(70), LAST, batch=0)
    apart(lambda: fit(network(), sgd(), broadcast(), act), "iter", "by up to 69")


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
