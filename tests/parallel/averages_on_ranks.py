"""Averages of weights (`use_ema`) in a pipeline: each stage has its own, and they become weights when Keras says so."""

import keras
import numpy as np
import pytest
from graphs import tied
from scope_on_ranks import WORDS, X, Y, compiled, deferred, distance, fit, own_sizes, pipeline, sizes


def averaging(frequency=None):
    return lambda: keras.optimizers.SGD(
        0.03, momentum=0.9, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=frequency
    )


def swaps(on_epoch):
    return lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)]


def equal(optimizer, callbacks=lambda: [], build=None, data=(X, Y), fits=2, **options):
    """Train by stages that have the whole model outside of `fit()`, and compare weights, state and history."""
    options = {"data": data, **options}
    build = {} if build is None else {"build": build}
    model, reference = compiled(optimizer=optimizer, **build), compiled(optimizer=optimizer, **build)
    for _ in range(fits):
        history = fit(model, *callbacks(), stages=pipeline(), **options)
        expected = fit(reference, *callbacks(), **options)
        for name, values in expected.history.items():
            np.testing.assert_allclose(history.history[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
        both = [[*one.weights, *one.optimizer.variables] for one in (model, reference)]
        for ours, theirs in zip(*both, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5, err_msg=theirs.path)
    return model


def check_averages_become_the_weights_at_the_end():
    model = equal(averaging())
    averages = model.optimizer._model_variables_moving_average
    for weight, average in zip(model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(weight, average)


def check_averages_become_the_weights_after_steps():
    equal(averaging(frequency=2))


def check_averages_of_a_weight_of_several_stages():
    equal(averaging(), build=tied, data=WORDS)
    equal(averaging(frequency=2), build=tied, data=WORDS)


def check_averages_beside_a_scale_of_the_loss():
    equal(lambda: keras.optimizers.LossScaleOptimizer(averaging()()), fits=1)


def check_callbacks_swap_weights_and_averages():
    for on_epoch in (False, True):
        equal(averaging(), swaps(on_epoch), validation_data=(X[:24], Y[:24]), epochs=3)


def check_what_is_swapped_when_training_stops_stays_so():
    """Keras then leaves in the weights what was swapped away."""

    def callbacks():
        stops = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: setattr(stops.model, "stop_training", epoch == 1)
        )
        return [stops, *swaps(on_epoch=True)()]

    equal(averaging(), callbacks, epochs=4, fits=1)


def check_best_weights_are_put_back_behind_the_averages():
    equal(averaging(), lambda: [keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True)], fits=1)


def check_stages_of_a_model_that_is_on_no_rank_as_a_whole_have_their_averages():
    for frequency in (None, 2):
        model, reference = deferred(optimizer=averaging(frequency)), compiled(optimizer=averaging(frequency))
        for _ in range(2):
            fit(model, stages=pipeline())
            fit(reference)
        states = model.optimizer.variables[2:]  # behind the steps so far and the learning rate
        assert sum(sizes(states)) == 2 * sum(own_sizes(model))  # momenta and averages
        delta = distance(model, reference)
        assert delta <= 1e-5, delta


def check_a_weight_of_several_stages_of_a_model_that_is_on_no_rank_as_a_whole():
    model, reference = deferred(tied, optimizer=averaging()), compiled(tied, averaging())
    fit(model, stages=pipeline(), data=WORDS)
    fit(reference, data=WORDS)
    assert distance(model, reference) <= 1e-5


def check_to_swap_is_refused_in_a_scope():
    model = deferred(optimizer=averaging())
    with pytest.raises(ValueError, match="needs all of them. Received: SwapEMAWeights") as raised:
        fit(model, *swaps(on_epoch=False)(), stages=pipeline())
    assert "\n" not in str(raised.value)
