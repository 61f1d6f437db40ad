"""What `DistributedOptimizer` is to Keras: one process, no exchange."""

import functools
import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

import easyscale


class OwnExchange(easyscale.exchange.Exchange):
    def _reduce(self, buffer):
        raise AssertionError("one worker exchanges nothing")

    _gather = _reduce


def _model(optimizer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _fit(model, **options):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(32, 3)), generator.normal(size=(32, 1))
    return model.fit(x, y, batch_size=8, shuffle=False, verbose=0, **options)


def test_one_worker_trains_as_stock_keras():
    ours, stock = _model(easyscale.DistributedOptimizer("adam", OwnExchange())), _model("adam")
    mine, theirs = _fit(ours, callbacks=[easyscale.callbacks.Distribute()], epochs=2), _fit(stock, epochs=2)
    assert mine.history.keys() == theirs.history.keys()
    for key, values in theirs.history.items():
        np.testing.assert_allclose(mine.history[key], values, rtol=1e-5)
    for a, b in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_it_serialises_as_itself():
    optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(0.25, momentum=0.5), "tree", bucket_bytes=1024)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, easyscale.DistributedOptimizer)
    assert (again.exchange, again.bucket_bytes, again.replication, again.update) == ("tree", 1024, None, None)
    assert float(again.inner_optimizer.momentum) == 0.5 and float(again.learning_rate) == 0.25


def test_learning_rate_iterations_and_variables_are_the_inner_ones():
    inner = keras.optimizers.Adam(0.5)
    optimizer = easyscale.DistributedOptimizer(inner)
    optimizer.learning_rate = 0.125
    assert float(inner.learning_rate) == 0.125
    optimizer.build([keras.Variable(np.zeros(3))])
    assert inner.built and optimizer.iterations is inner.iterations
    assert [v.path for v in optimizer.variables] == [v.path for v in inner.variables]
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    assert float(easyscale.DistributedOptimizer(keras.optimizers.SGD(schedule)).learning_rate) == 1.0


def test_scaled_losses_and_weight_decay_exclusions_reach_the_inner_optimizer():
    inner = keras.optimizers.AdamW(loss_scale_factor=8.0)
    optimizer = easyscale.DistributedOptimizer(inner)
    assert float(optimizer.scale_loss(2.0)) == 16.0
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    bias, kernel = keras.Variable(np.zeros(1), name="bias"), keras.Variable(np.zeros(1), name="kernel")
    optimizer.build([bias, kernel])
    assert not inner._use_weight_decay(bias) and inner._use_weight_decay(kernel)


LOAD = textwrap.dedent(
    """
    import sys
    sys.modules["easyscale"] = None  # not installed
    import keras
    import numpy as np
    model = keras.models.load_model(sys.argv[1])
    assert type(model.optimizer) is keras.optimizers.Adam, model.optimizer
    values = [np.asarray(v.numpy()) for v in model.optimizer.variables]
    expected = np.load(sys.argv[2])
    assert len(values) == len(expected.files) > 8
    for index, value in enumerate(values):
        np.testing.assert_array_equal(value, expected[f"arr_{index}"])
    model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
    """
)


@pytest.mark.parametrize("by_hand", [True, False], ids=["wrapped by hand", "wrapped by the callback"])
def test_a_saved_model_loads_with_stock_keras_and_has_the_optimizers_state(tmp_path, by_hand):
    model = _model(easyscale.DistributedOptimizer("adam") if by_hand else "adam")
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "during.keras")
    _fit(model, callbacks=[checkpoint, easyscale.callbacks.Distribute()])
    model.save(tmp_path / "after.keras")
    state = tmp_path / "state.npz"
    np.savez(state, *[variable.numpy() for variable in model.optimizer.variables])
    for name in ("during.keras", "after.keras"):
        command = [sys.executable, "-W", "error", "-c", LOAD, str(tmp_path / name), str(state)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ})
        assert done.returncode == 0, done.stderr[-3000:]


def test_the_saved_state_stands_in_the_file_once(tmp_path):
    stock, ours = _model("adam"), _model(easyscale.DistributedOptimizer("adam"))
    _fit(stock)
    _fit(ours, callbacks=[easyscale.callbacks.Distribute()])
    stock.save(tmp_path / "stock.keras")
    ours.save(tmp_path / "ours.keras")
    sizes = [(tmp_path / name).stat().st_size for name in ("stock.keras", "ours.keras")]
    assert abs(sizes[0] - sizes[1]) < 1000, sizes


def test_weights_files_carry_the_state_and_load_into_a_stock_model(tmp_path):
    ours, stock = _model("adam"), _model("adam")
    _fit(ours, callbacks=[easyscale.callbacks.Distribute()])
    ours.save_weights(tmp_path / "ours.weights.h5")
    stock.optimizer.build(stock.trainable_variables)
    stock.load_weights(tmp_path / "ours.weights.h5")
    assert int(stock.optimizer.iterations) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exchange": "rnig"}, r"`exchange` must be one of \['auto', .*: exchange='rnig'. Did you mean 'ring'\?"),
        ({"exchange": 3}, "`exchange` must be one of .* or an `Exchange`. Received: exchange=3"),
        ({"replication": "between-graph"}, r"`replication` must be one of .* Did you mean 'between_graph'\?"),
        (
            {"update": "shared"},
            r"`update` must be one of \['diloco', .*\]. Received: update='shared'. Did you mean 'sharded'",
        ),
        ({"bucket_bytes": 0}, "`bucket_bytes` must be a positive integer or `None`. Received: bucket_bytes=0"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_argument_is_named_with_those_that_can_be(arguments, message):
    makes = [functools.partial(easyscale.DistributedOptimizer, "sgd"), easyscale.callbacks.Distribute]
    for make in makes:
        with pytest.raises(ValueError, match=message) as raised:
            make(**arguments)
        assert "\n" not in str(raised.value)


def test_what_is_set_or_read_on_it_is_that_of_the_inner_optimizer():
    adam = keras.optimizers.Adam(0.1)
    optimizer = easyscale.DistributedOptimizer(adam)
    optimizer.beta_1, optimizer.clipnorm, optimizer.exchange = 0.5, 0.25, "ring"
    assert (adam.beta_1, adam.clipnorm, optimizer.beta_1, optimizer.clipnorm) == (0.5, 0.25, 0.5, 0.25)
    assert not hasattr(adam, "exchange")
    with pytest.raises(AttributeError):
        optimizer.beta_3  # noqa: B018


def test_hyperparameters_read_after_fit_are_those_the_model_was_compiled_with():
    arguments = {"name": "own", "clipnorm": 0.5, "weight_decay": 0.01, "use_ema": True, "ema_momentum": 0.5}
    arguments |= {"ema_overwrite_frequency": 2, "gradient_accumulation_steps": 2}
    model, stock = _model(keras.optimizers.Adam(0.1, **arguments)), _model(keras.optimizers.Adam(0.1, **arguments))
    _fit(model, callbacks=[easyscale.callbacks.Distribute()])
    _fit(stock)
    for name, value in arguments.items():
        assert getattr(model.optimizer, name) == value, name
    assert len(model.optimizer.variables) == len(stock.optimizer.variables)
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon"])
def test_an_update_that_looks_at_whole_weights_is_not_sharded(name):
    with pytest.raises(ValueError, match="its step for a part of a matrix is not that part of its step for the matrix"):
        easyscale.DistributedOptimizer(getattr(keras.optimizers, name)(), update="sharded")


def test_a_distributed_optimizer_inside_another_is_refused():
    with pytest.raises(ValueError, match="must not be a `DistributedOptimizer` itself"):
        easyscale.DistributedOptimizer(easyscale.DistributedOptimizer("sgd"))


def test_no_optimizer_inside_is_refused():
    with pytest.raises(TypeError, match=r"`inner_optimizer` must be an optimizer .* Received: None"):
        easyscale.DistributedOptimizer(None)


def test_the_callback_does_not_contradict_an_optimizer_that_is_distributed_already():
    model = _model(easyscale.DistributedOptimizer("sgd", "tree"))
    with pytest.raises(ValueError, match="`exchange` must be said once: .* exchange='tree'"):
        _fit(model, callbacks=[easyscale.callbacks.Distribute("ring")])


def test_a_model_that_is_not_compiled_is_refused_by_keras_itself():
    with pytest.raises(ValueError, match="compile"):
        _fit(keras.Sequential([keras.layers.Dense(1)]), callbacks=[easyscale.callbacks.Distribute()])
