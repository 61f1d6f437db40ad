"""Two pipelines of two stages take the steps of one process, with every exchange between them."""

import itertools
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from covering import full
from graphs import dense_net, losses_of_layers, tied
from pipeline_on_ranks import (
    accumulates,
    adam,
    classes,
    classifier,
    compiled,
    equal,
    equal_of_lookups,
    images,
    largest_difference,
    masked,
    masks,
    normalizes,
    scaled,
    sentences,
    sgd,
    sgd_of,
    tasks,
    two_tasks,
)
from scope_on_ranks import check_callbacks_write_files, check_sharded_update

import easyscale
from easyscale import called
from easyscale.callbacks import Distribute
from easyscale.parallel import Pipeline

__all__ = ["check_callbacks_write_files", "check_sharded_update"]

comm = easyscale.communicator.get()
TWO = [{"stages": 2, "microbatches": 4, "cut": "weights"}]
BOTH = [
    {"stages": 2, "microbatches": 8, "schedule": "gpipe", "cut": "weights"},
    {"stages": 2, "microbatches": 3, "cut": "time"},
]
UPDATES = ("replicated", "sharded")


@full
def check_a_worker_is_a_pipeline():
    Distribute("ring", model_parallel=Pipeline(stages=2))
    assert (easyscale.size(), easyscale.rank(), easyscale.local_batch(24)) == (2, comm.rank // 2, 12)
    assert easyscale.is_chief() == (comm.rank == 0)
    assert easyscale.shard(np.arange(7)).tolist() == list(range(comm.rank // 2, 7, 2))
    assert easyscale.unshard(easyscale.shard(np.arange(7))).tolist() == list(range(7))
    called.names.clear()


@full
def check_each_exchange_and_update():
    """The last of three batches has one sample: one pipeline has no part in it."""
    data, deltas = classes(49), []
    turns = itertools.cycle(UPDATES)
    cases = [*((name, next(turns)) for name in easyscale.exchange.available()), ("ring", "replicated")]
    for name, update in dict.fromkeys([*cases, ("ring", "sharded")]):
        deltas.append(equal(classifier(adam), data, TWO, options={"exchange": name, "update": update}))
    return max(deltas)


@full
def check_long_skips():
    return equal(masks(sgd), images(), BOTH, batch=16, options={"update": "sharded"})


@full
def check_two_inputs_and_two_outputs():
    return equal(two_tasks(adam), tasks(), BOTH, batch=16)


@full
def check_validation():
    return equal(classifier(sgd), classes(60), TWO, validates=True)


@full
def check_a_sum_of_losses_over_uneven_batches():
    """Validations of them exchange numbers inside of a step, which cannot be compiled: that is turned off."""
    make = compiled(dense_net, sgd, loss=keras.losses.MeanSquaredError("sum"), jit_compile=True)
    x, _ = classes(49)
    return equal(make, (x, 0.1 * x[:, :10]), TWO, validates=True)


def check_masks_and_weights_that_losses_are_divided_by():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    words, labels = sentences(49)
    weights = np.linspace(0, 2, 49 * 6).reshape(49, 6).astype("float32")
    deltas = [equal(compiled(masked, sgd, loss=loss), (words, labels, weights), TWO, batch=24, validates=True)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    deltas.append(equal(compiled(masked, sgd, loss=loss), (words, labels), BOTH, batch=24))
    return max(deltas)


@full
def check_losses_of_layers():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return equal(compiled(losses_of_layers, sgd, loss=loss), classes(49), BOTH, options={"update": "sharded"})


@full
def check_embeddings_whose_gradients_are_rows():
    def build():
        layers = [keras.layers.Embedding(20, 8), keras.layers.Flatten(), keras.layers.Dense(24, activation="tanh")]
        return keras.Sequential([keras.Input((6,), dtype="int32"), *layers, keras.layers.Dense(10)])

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    generator = np.random.default_rng(3)
    words = generator.integers(0, 20, (49, 6)), generator.integers(0, 10, 49)
    optimizers = keras.optimizers.Adam, lambda: sgd_of(global_clipnorm=0.05)
    return max(equal(compiled(build, make, loss=loss), words, TWO, batch=24) for make in optimizers)


@full
def check_embeddings_of_several_stages_whose_gradients_are_rows_on_all_or_on_some():
    return equal_of_lookups(TWO)


@full
def check_epochs_that_go_on_with_the_data_of_the_last():
    """Three batches are a pass, of which the last has no sample for one pipeline; an epoch has two, or all three."""
    data = classes(49)

    def trained(steps, shard, *callbacks):
        keras.utils.set_random_seed(1)
        model, dataset = classifier(sgd)(), tf.data.Dataset.from_tensor_slices(data).batch(24).map(lambda *rows: rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"steps_per_epoch": steps, "epochs": 3, "verbose": 0}
            history = model.fit(shard(dataset), callbacks=list(callbacks), **options).history
        return model, history["loss"]

    differences = []
    for steps in (2, 3):
        distribute = Distribute("ring", model_parallel=Pipeline(**TWO[0]))
        model, losses = trained(steps, lambda dataset: easyscale.shard(dataset, batched=True), distribute)
        reference, expected = trained(steps, lambda dataset: dataset)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        differences.append(largest_difference(model, reference))
        assert differences[-1] <= 1e-5
    return max(differences)


@full
def check_a_saved_epoch_has_the_state_of_all_stages_and_of_all_their_parts():
    data = classes(49)
    for update, optimizer in (("replicated", scaled), ("replicated", adam), ("sharded", adam)):
        called.names.clear()
        distribute = Distribute("ring", update=update, model_parallel=Pipeline(**TWO[0]))
        x, y = easyscale.shard(*data)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "epoch-{epoch}.keras"))
            keras.utils.set_random_seed(1)
            model = classifier(optimizer)()
            saves = keras.callbacks.ModelCheckpoint(path)
            options = {"epochs": 2, "shuffle": False, "verbose": 0}
            model.fit(x, y, batch_size=easyscale.local_batch(24), callbacks=[distribute, saves], **options)
            if comm.is_chief:
                for epoch in (1, 2):
                    keras.utils.set_random_seed(1)
                    reference = classifier(optimizer)()
                    reference.fit(*data, batch_size=24, **{**options, "epochs": epoch})
                    loaded = keras.models.load_model(path.format(epoch=epoch))
                    assert largest_difference(loaded, reference) <= 1e-5
                    for ours, theirs in zip(loaded.optimizer.variables, reference.optimizer.variables, strict=True):
                        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
            comm.barrier()


class Stops(keras.callbacks.Callback):
    """Stops in one batch, on one rank; counts the batches."""

    def __init__(self, batch):
        super().__init__()
        self.batch, self.batches = batch, 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if batch == self.batch:
            self.model.stop_training = True


@full
def check_a_rank_stops_all_also_where_some_have_no_batch_left():
    data = classes(49)
    for batch, expected in ((1, 2), (2, 3)):
        called.names.clear()
        distribute = Distribute("ring", model_parallel=Pipeline(**TWO[0]))
        stops = Stops(batch if comm.rank == 1 else -1)
        x, y = easyscale.shard(*data)
        options = {"epochs": 3, "shuffle": False, "verbose": 0}
        history = classifier(sgd)().fit(
            x, y, batch_size=easyscale.local_batch(24), callbacks=[distribute, stops], **options
        )
        assert history.epoch == [0]
        assert stops.batches == min(expected, 3 if comm.rank < 2 else 2)


@full
def check_dropout_differs_between_pipelines():
    def build():
        layers = [keras.layers.Dense(64), keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((12,)), *layers])

    called.names.clear()
    distribute = Distribute("ring", model_parallel=Pipeline(**TWO[0]))
    model = compiled(build, sgd, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))()
    x, y = easyscale.shard(*classes(48))
    model.fit(x, y, batch_size=easyscale.local_batch(24), verbose=0, callbacks=[distribute])
    seeds = comm.all_gather_object(int(np.array(model.get_layer("drop").seed_generator.state)[0]))
    assert seeds[0] == seeds[1] and seeds[2] == seeds[3] and seeds[0] != seeds[2]
    sums = comm.all_gather_object([float(np.sum(value, dtype="float64")) for value in model.trainable_variables])
    assert all(one == sums[0] for one in sums)


@full
def check_batch_normalization_is_that_of_one_process_with_the_same_micro_batches():
    called.names.clear()
    return max(normalizes(TWO[0], {"exchange": "tree", "update": update}) for update in UPDATES)


@full
def check_tied_weights():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    generator = np.random.default_rng(4)
    words = generator.integers(0, 20, (49, 6)), generator.integers(0, 20, (49, 6))
    return equal(compiled(tied, sgd, loss=loss), words, TWO, batch=24, options={"update": "sharded"})


@full
def check_clipping_by_the_norm_over_all_stages():
    make = classifier(lambda: sgd_of(global_clipnorm=0.05))
    return max(equal(make, classes(49), TWO, options={"update": update}) for update in UPDATES)


@full
def check_gradients_that_are_summed_up_over_steps():
    return equal(classifier(accumulates), classes(49), TWO, epochs=3)


@full
def check_all_skip_a_step_when_the_gradients_of_one_stage_overflow():
    return equal(classifier(scaled), classes(49), TWO, epochs=5)


@full
def check_exchanges_that_do_not_wait_are_refused():
    called.names.clear()
    distribute = Distribute("parameter_server:async", model_parallel=Pipeline(**TWO[0]))
    with pytest.raises(ValueError, match=r"must wait for all of them. Received: exchange='parameter_server:async'"):
        classifier(sgd)().fit(*classes(48), verbose=0, callbacks=[distribute])
    comm.barrier()


class Drifts(keras.callbacks.Callback):
    """Changes a weight of its stage on one rank, behind the first step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and comm.rank == 3:
            last = self.model.trainable_variables[-1]
            last.assign_add(np.full(last.shape, 1e-4, "float32"))


@full
def check_pipelines_that_drift_apart_are_told_so():
    called.names.clear()
    distribute = Distribute("ring", update="replicated", model_parallel=Pipeline(**TWO[0]), check_every=2)
    x, y = easyscale.shard(*classes(96))
    message = r"must have the same weights\. Received: .* of rank 3 differs? from rank 1 after step 4"
    with pytest.raises(easyscale.DesyncError, match=message):
        classifier(sgd)().fit(x, y, batch_size=easyscale.local_batch(24), verbose=0, callbacks=[distribute, Drifts()])
    comm.barrier()


@full
def check_a_second_fit_goes_on_with_the_state_of_all_parts():
    data, options = classes(49), {"epochs": 1, "shuffle": False, "verbose": 0}
    called.names.clear()
    distribute = Distribute("ring", update="sharded", model_parallel=Pipeline(**TWO[0]))
    x, y = easyscale.shard(*data)
    keras.utils.set_random_seed(1)
    model = classifier(adam)()
    keras.utils.set_random_seed(1)
    reference = classifier(adam)()
    for _ in range(3):
        model.fit(x, y, batch_size=easyscale.local_batch(24), callbacks=[distribute], **options)
        reference.fit(*data, batch_size=24, **options)
    assert largest_difference(model, reference) <= 1e-5
