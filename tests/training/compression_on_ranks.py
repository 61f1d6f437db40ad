"""What a `fit()` sends when its gradients travel in a form, and what does not travel so."""

import contextlib
import io

import keras
import numpy as np
from checkpoints_on_ranks import leave
from covering import full
from folders import new_folder
from forms import own_forms
from models import assert_equal_ranks, classify, digits, single_start

import easyscale
from easyscale.callbacks import Distribute
from easyscale.choice import of_form
from easyscale.communicator.throttled import Line, Throttled
from easyscale.compression import ErrorFeedback, Packing, PowerSGD, RandomK, TopK
from easyscale.layout.bucket import plan
from easyscale.layout.specs import specs_of

comm = easyscale.communicator.get()
STEPS = 4


class Zeros(Packing):
    """A form of which nothing is left: what has been sent is zero."""

    name = "zeros"
    error = 1.0

    def nbytes(self, length):
        return 4

    def pack(self, vector):
        return np.zeros(4, np.uint8)

    def unpack(self, message, vector):
        vector[:] = 0


class SentInSteps(keras.callbacks.Callback):
    """The bytes that this rank has sent by the end of each step."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def on_train_batch_end(self, batch, logs=None):
        self.sent.append(comm.sent.bytes)

    @property
    def of_a_step(self):
        """Between the second and the third: the first step compares weights."""
        return self.sent[2] - self.sent[1]


def net():
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(32)]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dense(10)]
    return classify(keras.Sequential(layers), keras.optimizers.SGD(0.1, momentum=0.9))


def trained(compression, exchange="ring", update=None, model=None, callbacks=()):
    """Return a model after some steps, the weights before them, and the bytes that this rank sends in one."""
    single_start()
    model, sent = model or net(), SentInSteps()
    before = model.get_weights()
    x, y = easyscale.shard(*digits(24 * STEPS))
    distribute = Distribute(exchange, update=update, compression=compression, check_every=1000)
    options = {"batch_size": easyscale.local_batch(24), "shuffle": False, "verbose": 0}
    model.fit(x, y, callbacks=[sent, distribute, *callbacks], **options)
    assert_equal_ranks(model.get_weights())
    return model, before, sent.of_a_step


def chunk(model):
    """The number of elements that each rank owns of all gradients in one vector."""
    (bucket,) = plan(specs_of(model.trainable_variables))
    bounds = [bucket.length * rank // comm.size for rank in range(comm.size + 1)]
    return bounds[comm.rank + 1] - bounds[comm.rank]


@full
def check_gradients_travel_in_a_form_and_moving_statistics_do_not():
    model, before, _ = trained(Zeros())
    for variable, value in zip(model.weights, before, strict=True):
        moved = np.abs(np.array(variable) - value).max()
        assert (moved > 0) == ("moving" in variable.name), variable.path


@full
def check_weights_of_the_sharded_update_come_back_as_they_are():
    model, before, _ = trained(Zeros(), update="sharded")
    assert all(np.abs(after - value).max() > 0 for after, value in zip(model.get_weights(), before, strict=True))
    model, _, _ = trained("fp16", update="sharded")
    kernel = model.get_weights()[0]
    assert (kernel != kernel.astype("float16")).mean() > 0.9


@full
def check_what_a_form_sends_is_what_it_says():
    moving = 4 * 2 * 32
    for compression in ("fp16", "bf16", "int8"):
        model, _, sent = trained(compression)
        packed = easyscale.compression.get(compression).nbytes(chunk(model))
        assert abs(sent - 2 * (comm.size - 1) * packed - 2 * moving * (comm.size - 1) / comm.size) < 1000


@full
def check_the_sharded_update_sends_half_of_its_bytes_in_a_form():
    whole, packed = trained(None, update="sharded")[2], trained("fp16", update="sharded")[2]
    assert abs(packed - 0.75 * whole) < 1000


@full
def check_nothing_is_in_another_form_where_nothing_is_sent():
    """On one node `shared_memory` reads what is there, and the update is the one that it is without a form."""
    model, before, _ = trained(Zeros(), exchange="shared_memory")
    expected, _, _ = trained(None, exchange="shared_memory")
    for after, value in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(after, value)
    assert model.optimizer.update is None and model.optimizer.compression == Zeros()


@full
def check_rows_of_sparse_gradients_travel_as_they_are():
    layers = [keras.Input((4,), dtype="int32"), keras.layers.Embedding(500, 8), keras.layers.Flatten()]
    model = classify(keras.Sequential([*layers, keras.layers.Dense(10)]), keras.optimizers.SGD(0.1))
    before = model.get_weights()
    x, y = easyscale.shard(np.arange(48).reshape(12, 4), np.arange(12) % 10)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Distribute("ring", compression=Zeros(), update="replicated")])
    moved = [np.abs(after - value).max() for after, value in zip(model.get_weights(), before, strict=True)]
    assert moved[0] > 0 and moved[1] == moved[2] == 0


@full
def check_one_form_in_two_fits_is_one_optimizer():
    model, _, _ = trained(easyscale.compression.FP16())
    optimizer = model.optimizer
    trained(easyscale.compression.FP16(), model=model)
    assert model.optimizer is optimizer
    trained("bf16", model=model)
    assert model.optimizer is not optimizer


def _resumed(compression, folder, update=None, epochs=2):
    single_start()
    model = net()
    x, y = easyscale.shard(*digits(24 * STEPS))
    distribute = Distribute("ring", update=update, compression=compression, checkpoint=folder, every=1, keep=100)
    options = {"batch_size": easyscale.local_batch(24), "shuffle": False, "verbose": 0, "epochs": epochs}
    model.fit(x, y, callbacks=[distribute], **options)
    return model.get_weights()


def check_training_goes_on_with_the_same_bits_and_the_residuals():
    for compression, update in ((ErrorFeedback("int8"), None), (RandomK(0.1), "sharded"), (PowerSGD(2), None)):
        folder = new_folder()
        whole = _resumed(compression, folder, update)
        leave(folder, step=STEPS + 1)
        again = _resumed(compression, folder, update)
        for after, value in zip(again, whole, strict=True):
            np.testing.assert_array_equal(after, value)


@full
def check_a_checkpoint_goes_on_without_its_residuals_where_nothing_keeps_any():
    folder = new_folder()
    _resumed(ErrorFeedback("int8"), folder)
    leave(folder, step=STEPS + 1)
    assert_equal_ranks(_resumed(None, folder))


def _as_long_in_any_form(step, communicator):
    step()
    return 1.0


def check_auto_chooses_a_form_on_a_slow_network_and_none_on_a_fast_one():
    """1.2 MB of gradients: 160 ms in each direction at 10 MB/s. On a fast network a step takes as long in any form."""
    x, y = easyscale.shard(*digits(24 * STEPS))
    measured = of_form.seconds_of
    for line, form, update in ((Line(1e7), "int8", "replicated"), (Line(), None, "sharded")):
        single_start()
        of_form.seconds_of = measured if form else _as_long_in_any_form
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4096), keras.layers.Dense(10)]
        model, said = classify(keras.Sequential(layers), keras.optimizers.SGD(0.01, momentum=0.9)), io.StringIO()
        distribute = Distribute("ring", compression="auto", communicator=Throttled(comm, line))
        with contextlib.redirect_stdout(said):
            model.fit(x, y, batch_size=easyscale.local_batch(24), verbose=2, callbacks=[distribute])
        of_form.seconds_of = measured
        assert_equal_ranks(model.get_weights())
        sums, updates = model.optimizer.workers.gradients.sums, model.optimizer.updates
        assert (sums and sums.form) == easyscale.compression.get(form)
        assert updates.chosen.name == update
        lines = [text for text in said.getvalue().splitlines() if "compression:" in text]
        assert [text.startswith(f"EasyScale: compression: {form or 'none'}, ") for text in lines] == [
            True
        ] * comm.is_chief


# Each form by its name; those that leave out most of a gradient as they are good for so few steps.
LEARNT = dict(zip(own_forms(), own_forms(), strict=True))
LEARNT |= {"top_k": TopK(0.05), "random_k": RandomK(0.5), "power_sgd": PowerSGD(2, start_step=10)}
LEARNT |= {"int8, errors kept": ErrorFeedback("int8")}


@full
def check_digits_are_learnt_in_each_form():
    """The mean of three seeds: 793 images to train, of which the chief of three ranks has one more, and 997 to test.

    Of one seed, 10 epochs of 34 steps, it would be luck: the same training differs by two points and more.
    """
    x, y = digits(1797)
    own, accuracies = easyscale.shard(x[:793], y[:793]), {}
    for name, compression in {"none": None, **LEARNT}.items():
        right = []
        for seed in (1, 2, 3):
            keras.utils.set_random_seed(seed)
            model = net()
            options = {"batch_size": easyscale.local_batch(24), "epochs": 10, "verbose": 0}
            model.fit(*own, callbacks=[Distribute("ring", compression=compression)], **options)
            assert_equal_ranks(model.get_weights())
            logits = model.predict(x[800:], verbose=0)
            right.append(float((logits.argmax(axis=1) == y[800:]).mean()))
        accuracies[name] = sum(right) / len(right)
    assert accuracies["none"] > 0.88
    assert min(accuracies.values()) > accuracies["none"] - 0.03, accuracies
    return accuracies
