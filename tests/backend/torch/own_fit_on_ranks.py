"""`fit()` with `Distribute` on PyTorch: what is torch's own."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "shared"), str(Path(__file__).parents[2] / "training")]

import fit_on_ranks as common  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from covering import full  # noqa: E402
from equality_of_optimizers_on_ranks import check_gradient_accumulation_under_loss_scaling  # noqa: E402
from metrics_on_ranks import (  # noqa: E402
    check_metrics_are_merged_that_a_train_step_returns_beside_other_numbers,
    check_results_of_metrics_that_a_step_returns_under_other_names,
)
from models import assert_as_one_process, classify, conv_net, dense, digits, equal, sgd  # noqa: E402
from precision_on_ranks import check_overflow_on_one_rank_with_the_optimizer_that_compile_wraps  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.keras_internals import release_of  # noqa: E402

comm = easyscale.communicator.get()

__all__ = [
    "check_gradient_accumulation_under_loss_scaling",
    "check_metrics_are_merged_that_a_train_step_returns_beside_other_numbers",
    "check_overflow_on_one_rank_with_the_optimizer_that_compile_wraps",
    "check_results_of_metrics_that_a_step_returns_under_other_names",
]


class OwnStep(keras.Model):
    """The pattern of Keras's guide for PyTorch: a train_step of one's own."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        self.mean_loss = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = self.loss_of(y, self(x, training=True)) / 24
        loss.backward()
        variables = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([variable.value.grad for variable in variables], variables)
        self.mean_loss.update_state(loss, sample_weight=x.shape[0])
        return {"loss": self.mean_loss.result()}

    @property
    def metrics(self):
        return [self.mean_loss]


@full
def check_several_steps_in_one_execution():
    """As of Keras 3.16, which trains on several batches in one call."""
    if release_of(keras.__version__) >= (3, 16):
        return max(equal(dense(sgd, steps_per_execution=steps), epochs=3, validates=True) for steps in (2, 3))
    with pytest.raises(ValueError, match="`steps_per_execution` must be 1 with the PyTorch backend"):
        common.fit_a_little(dense(sgd, steps_per_execution=2)())


@full
def check_a_train_step_of_ones_own():
    def build():
        model = OwnStep()
        model.compile(sgd())
        return model

    return equal(build)


def check_a_py_dataset_and_a_data_loader():
    x, y = digits(98)

    def train(data, **options):
        model = dense(sgd)()
        return model, model.fit(data, epochs=2, shuffle=False, verbose=0, **options)

    def loader(x, y, batch):
        data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        return torch.utils.data.DataLoader(data, batch)

    def by_batches():
        return train(easyscale.shard(common.Batches(x, y, 24)), callbacks=[Distribute()])

    def by_loader():
        return train(loader(*easyscale.shard(x, y), easyscale.local_batch(24)), callbacks=[Distribute()])

    def by_divided_loader():
        return train(easyscale.shard(loader(x, y, 24)), callbacks=[Distribute()])

    ways = [by_batches, by_loader, by_divided_loader]
    return assert_as_one_process(ways, lambda: train(loader(x, y, 24)))


def check_compiling_is_turned_off():
    def build():
        return classify(conv_net(), sgd(), jit_compile=comm.size > 1)

    if comm.is_chief and comm.size > 1:
        with pytest.warns(easyscale.EasyScaleWarning, match="`jit_compile` is turned off"):
            _stays_off(build())
    else:
        _stays_off(build())


def _stays_off(model):
    common.fit_a_little(model)
    assert not model.jit_compile


def check_a_script_draws_the_same_numbers_on_all_ranks_after_fit():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    drawn = []
    for _ in range(2):
        x = torch.rand(6 * (1 + comm.is_chief), 4)  # not all have drawn as often
        model.fit(x, x[:, :1], batch_size=6, verbose=0, callbacks=[Distribute()])
        drawn.append(torch.randperm(1000).tolist())
    assert drawn[0] != drawn[1]
    assert all(others == drawn for others in comm.all_gather_object(drawn))


def check_an_ignored_class_with_sample_weights():
    weights = np.random.default_rng(0).uniform(0, 2, 98).astype("float32")

    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
        model = keras.Sequential(layers)
        options = {"from_logits": True, "ignore_class": 1, "reduction": "mean_with_sample_weight"}
        model.compile(sgd(), keras.losses.SparseCategoricalCrossentropy(**options))
        return model

    return equal(build, (*digits(98), weights))
