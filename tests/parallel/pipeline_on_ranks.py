"""A pipeline takes the steps of one process: weights, history, metrics, and what comes after `fit()`.

Each check returns the largest difference of a weight.
"""

import itertools

import keras
import numpy as np
from graphs import dense_net, two_by_two, u_net

import easyscale

STAGES = easyscale.communicator.get().size
EXCHANGES = itertools.cycle(["ring", "tree"])
GENERATOR = np.random.default_rng(0)


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.01, weight_decay=0.004)


def compiled(build, optimizer, **options):
    """Return a function that builds a model and compiles it."""

    def make():
        model = build()
        model.compile(optimizer(), **options)
        return model

    return make


def classifier(optimizer, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(dense_net, optimizer, loss=loss, metrics=["accuracy"], **options)


def classes(count=74):
    return GENERATOR.normal(size=(count, 12)).astype("float32"), GENERATOR.integers(0, 10, count)


def equal(make, data, stages=None, batch=24, epochs=2, tolerance=1e-5, validates=False, parallel=(), **options):
    """Train as one process, and as pipelines; compare weights, optimizer, history, and an evaluation afterwards."""
    parallel = {"stages": stages or STAGES, "microbatches": 4, **dict(parallel)}
    distribute = easyscale.callbacks.Distribute("ring", model_parallel=easyscale.parallel.Pipeline(**parallel))
    common = {"epochs": epochs, "shuffle": False, "verbose": 0, **options}

    def fit(data, batch, callbacks):
        x, y, *weights = data
        model = make()
        if validates:
            common["validation_data"] = tuple(data)
        history = model.fit(
            x, y, sample_weight=weights[0] if weights else None, batch_size=batch, callbacks=callbacks, **common
        )
        return model, history

    keras.utils.set_random_seed(1 + easyscale.communicator.get().rank)
    model, history = fit(easyscale.shard(*data), easyscale.local_batch(batch), [distribute])
    delta = np.zeros(1)
    if easyscale.is_chief():
        keras.utils.set_random_seed(1)
        reference, expected = fit(data, batch, [])
        pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
        delta[0] = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
        assert delta[0] <= tolerance, f"weights differ from those of one process by {delta[0]}"
        pairs = zip(model.optimizer.variables, reference.optimizer.variables, strict=True)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=tolerance, err_msg=ours.path)
        assert set(history.history) == set(expected.history)
        for key, values in expected.history.items():
            np.testing.assert_allclose(history.history[key], values, rtol=1e-4, atol=tolerance, err_msg=key)
    model.test_function = None
    results = [model.evaluate(data[0], data[1], batch_size=batch, verbose=0)]
    everywhere = easyscale.communicator.get().all_gather_object(
        [float(np.sum(np.abs(one))) for one in [*results, *model.get_weights()]]
    )
    assert all(one == everywhere[0] for one in everywhere), "ranks differ"
    easyscale.communicator.get().broadcast(delta)
    return float(delta[0])


def check_sgd_of_a_dense_net():
    return equal(classifier(sgd), classes())


def check_adam_of_a_dense_net_with_validation():
    return equal(classifier(adam), classes(), validates=True)


def check_sample_weights():
    x, y = classes()
    return equal(classifier(sgd), (x, y, GENERATOR.uniform(0, 2, len(x)).astype("float32")))


def check_long_skips():
    make = compiled(u_net, adam, loss="mse", metrics=["mae"])
    x = GENERATOR.normal(size=(50, 8, 8, 1)).astype("float32")
    return equal(make, (x, np.tanh(2 * x)), batch=16)


def check_two_inputs_and_two_outputs():
    losses = {"early": "mse", "late": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    make = compiled(
        two_by_two, sgd, loss=losses, loss_weights={"early": 0.3, "late": 1.0}, metrics={"late": "accuracy"}
    )
    x = {"a": GENERATOR.normal(size=(50, 6)).astype("float32"), "b": GENERATOR.normal(size=(50, 3)).astype("float32")}
    y = {"early": GENERATOR.normal(size=(50, 2)).astype("float32"), "late": GENERATOR.integers(0, 4, 50)}
    return equal(make, (x, y), batch=16, validates=True)


def check_a_sum_of_losses():
    make = compiled(dense_net, sgd, loss=keras.losses.MeanSquaredError(reduction="sum"), metrics=["mse"])
    x, _ = classes()
    return equal(make, (x, 0.1 * x[:, :10]))
