"""The same training by all ranks and by one process, with the same callbacks: steps, weights, history and files."""

import io
import zipfile

import h5py
import keras
import numpy as np
import tensorflow as tf
from folders import done_with, new_folder
from models import TOLERANCE, assert_as_one_process, assert_equal_ranks, classify, digits

import easyscale
from easyscale.callbacks import Distribute

comm = easyscale.communicator.get()
GLOBAL_BATCH = 24
STEPS = 5  # in an epoch
DATA = digits(STEPS * GLOBAL_BATCH)
UNEVEN = tuple(one[: (STEPS - 1) * GLOBAL_BATCH + 1] for one in DATA)  # in the last step only the chief has data


def small_net(optimizer=None):
    layers = [
        keras.Input((8, 8, 1), name="image"),
        keras.layers.Flatten(name="flat"),
        keras.layers.Dense(16, activation="relu", name="hidden"),
        keras.layers.Dense(10, name="logits"),
    ]
    model = keras.Sequential(layers, name="model")
    return classify(model, optimizer or keras.optimizers.SGD(0.1, momentum=0.9, name="sgd"))


def _validation():
    """Digits whose labels are wrong on the last rank: there the loss rises while it falls on the others."""
    x, y = DATA[0][:60], DATA[1][:60]
    is_last = np.arange(60) % comm.size == comm.size - 1
    return x, np.where(is_last, (y + 1) % 10, y)


_models = {}


def _begin(build, shard):
    """Return a new model, or an older one made as new: so each is traced once for all checks."""
    new = build()
    new.optimizer.build(new.trainable_variables)
    model = _models.setdefault((build, shard), new)
    for variables, values in ((model.weights, new.weights), (model.optimizer.variables, new.optimizer.variables)):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return model


def _batches(x, y, size):
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread holds up, for seconds, who lets go of data before their end
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size).with_options(options)


def train(callbacks, shard, data=DATA, build=small_net, **options):
    """Return a model and its history after three epochs on this rank's part of the data, or on all of it."""
    model, parts, size = _begin(build, shard), (data, _validation()), GLOBAL_BATCH
    if shard:
        parts, size = [easyscale.shard(*part) for part in parts], easyscale.local_batch(size)
    data, validation = (_batches(*part, size) for part in parts)
    options = {"epochs": 3, "shuffle": False, "verbose": 0, "validation_data": validation, **options}
    return model, model.fit(data, callbacks=callbacks, **options)


def as_one_process(make_callbacks, on=None, place=None, distribute=None, **options):
    """Compare `fit()` on all ranks with that of one process: steps, weights, history, files. Return the steps.

    Args:
        make_callbacks: Takes a folder. Each rank is given another; only the chief's may get files, those that the one
            process writes.
        on: Int. The only rank that has the callbacks. Defaults to `None`: all.
        place: Int. Where `Distribute` stands in the list. Defaults to `None`: at the end.
        distribute: Dict. Options for `Distribute`.
    """
    folder, steps = new_folder(), {}

    def run(name, callbacks, shard):
        model, history = train(callbacks, shard, **options)
        steps[name] = int(model.optimizer.iterations)
        return model, history

    def distributed():
        mine = made(folder / name)
        callbacks = make_callbacks(mine) if on in (None, easyscale.rank()) else []
        callbacks.insert(len(callbacks) if place is None else place, Distribute(**(distribute or {})))
        return run(name, callbacks, shard=True)

    name = str(easyscale.rank())
    assert_as_one_process(distributed, lambda: run("alone", make_callbacks(made(folder / "alone")), shard=False))
    assert_equal_ranks([np.array(steps[name])])
    assert_only_the_chief_has_written(folder)
    if easyscale.is_chief():
        assert steps[name] == steps["alone"], steps
        _assert_same_files(folder / name, folder / "alone")
    done_with(folder)
    return steps[name]


def made(folder):
    folder.mkdir()
    return folder


def assert_only_the_chief_has_written(folder):
    mine = folder / str(easyscale.rank())
    assert easyscale.is_chief() or not list(mine.iterdir()), "another rank than the chief wrote"


def _assert_same_files(ours, theirs):
    same = {".keras": _same_model, ".h5": _same_weights, ".csv": _same_table}
    names = [sorted(_name(path, one) for path in one.rglob("*.*")) for one in (ours, theirs)]
    assert names[0] == names[1], names
    for name in names[0]:
        if name.suffix in same:
            same[name.suffix](ours / name, theirs / name)


def _name(path, folder):
    """A file's path in `folder`, without the time and process in the names of TensorBoard's files."""
    return path.relative_to(folder).with_name(path.name.split(".out.")[0])


def _same_model(ours, theirs):
    models = [keras.models.load_model(path) for path in (ours, theirs)]
    assert models[0].get_config() == models[1].get_config()
    assert models[0].get_compile_config() == models[1].get_compile_config()
    with zipfile.ZipFile(ours) as a, zipfile.ZipFile(theirs) as b:
        _same_weights(*(io.BytesIO(one.read("model.weights.h5")) for one in (a, b)))


def _same_weights(ours, theirs):
    """Compare weights and the optimizer's state, under the names that stock Keras gives them."""
    ours, theirs = arrays(ours), arrays(theirs)
    assert ours.keys() == theirs.keys(), (sorted(ours), sorted(theirs))
    assert "optimizer/vars/2" in ours, "no optimizer state"
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], atol=TOLERANCE, err_msg=name)


def arrays(path):
    arrays = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return arrays


def _same_table(ours, theirs):
    ours, theirs = ([line.split(",") for line in path.read_text().splitlines()] for path in (ours, theirs))
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(np.array(ours[1:], float), np.array(theirs[1:], float), rtol=1e-4)
