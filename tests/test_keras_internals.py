"""Names that are not public: whether they are there, and what is said if one is not."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses import loss as keras_losses

import easyscale
from easyscale import keras_internals
from easyscale.errors import EasyScaleError
from easyscale.keras_internals import table


@pytest.fixture(autouse=True)
def _unchecked():
    keras_internals.check.cache_clear()
    yield
    keras_internals.check.cache_clear()


def test_keras_and_tensorflow_have_every_name():
    keras_internals.check()


@pytest.mark.parametrize(
    "owner, name, said",
    [
        (
            keras.layers.BatchNormalization,
            "_moments",
            f"keras {keras.__version__} without `BatchNormalization._moments`",
        ),
        (keras.callbacks.ModelCheckpoint.__mro__[1], "_set_monitor_op", "without `ModelCheckpoint._set_monitor_op`"),
        (keras_losses, "reduce_weighted_values", "without `keras.src.losses.loss.reduce_weighted_values`"),
    ],
)
def test_a_fit_says_which_name_is_missing_in_which_version(monkeypatch, owner, name, said):
    monkeypatch.delattr(owner, name)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(EasyScaleError) as error:
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[easyscale.callbacks.Distribute()])
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def _with_row(monkeypatch, owner, *names):
    monkeypatch.setattr(table, "TABLE", (*table.TABLE, table.Private(owner, names, "a test")))


def test_names_that_only_instances_have_are_missed_as_well(monkeypatch):
    _with_row(monkeypatch, "keras:Model", "_initial_epoch", "_renamed", "_gone")
    with pytest.raises(EasyScaleError, match="without `Model._renamed`, `Model._gone`. Install an earlier keras"):
        keras_internals.check()


def test_a_module_that_is_elsewhere_is_said(monkeypatch):
    _with_row(monkeypatch, "keras.src.elsewhere", "name")
    with pytest.raises(EasyScaleError, match="without `keras.src.elsewhere`"):
        keras_internals.check()


def test_a_name_of_a_later_release_is_not_needed(monkeypatch):
    row = table.Private("keras:Model", ("_of_the_future",), "a test", seen=("99.0", "99.0"))
    monkeypatch.setattr(table, "TABLE", (*table.TABLE, row))
    keras_internals.check()


def test_the_table_says_what_is_missing(monkeypatch, capsys):
    assert table.main() == 0
    assert re.match(rf"keras {re.escape(keras.__version__)}: \d+ private names, 0 missing\n", capsys.readouterr().out)
    _with_row(monkeypatch, "keras:Model", "_renamed")
    assert table.main() == 1
    assert " private names, 1 missing Model._renamed\n" in capsys.readouterr().out


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("said", [None, False, True])
def test_a_layer_is_called_in_training_as_the_model_calls_it(training, said):
    """Also where it was given `training` when the model was built, which counts from Keras 3.16 on."""
    inputs, dropout = keras.Input((64,)), keras.layers.Dropout(0.5)
    given = {} if said is None else {"training": said}
    model = keras.Model(inputs, dropout(inputs, **given))
    x = np.ones((2, 64), "float32")
    dropped = not np.allclose(model(x, training=training), x)
    found = not np.allclose(keras_internals.with_training(dropout, training)(x, **given), x)
    assert found == dropped


def test_a_dataset_says_what_it_is_made_of():
    numbers = tf.data.Dataset.range(8)
    batches = numbers.batch(3)
    assert keras_internals.inputs_of(batches) == [numbers]
    assert keras_internals.inputs_of([1, 2]) == []
    assert keras_internals.batch_size_of(batches) == 3
    assert keras_internals.batch_size_of(numbers) is None
    assert keras_internals.dataset_of_iterator(iter(batches)) is batches
    assert keras_internals.dataset_of_iterator(iter([])) is None
