"""Gradients that leave in buckets while PyTorch's backward pass goes on, through the CPU's memory."""

import contextlib
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import keras  # noqa: E402
import pytest  # noqa: E402
from models import classify, conv, dense, digits, equal, sgd  # noqa: E402

import easyscale  # noqa: E402
from easyscale import backend as backends  # noqa: E402
from easyscale.backend.torch.backward_pass import WatchedPass  # noqa: E402
from easyscale.backend.torch.variables import native_of  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.step.reducer import Reducer  # noqa: E402

comm = easyscale.communicator.get()
PIECES = {"bucket_bytes": 512}


@contextlib.contextmanager
def events(variable):
    """Inside, list when a vector leaves, when the backward pass makes the gradient by a variable, and its end."""
    listed = []
    send, finish = Reducer.send, Reducer.finish

    def watched(name, method):
        def call(self, *args):
            listed.append(name)
            return method(self, *args)

        return call

    hook = native_of(variable).register_post_accumulate_grad_hook(lambda weight: listed.append("first layer"))
    with (
        mock.patch.object(Reducer, "send", watched("leaves", send)),
        mock.patch.object(Reducer, "finish", watched("ends", finish)),
    ):
        yield listed
    hook.remove()


def deep():
    hidden = [keras.layers.Dense(24, "relu") for _ in range(4)]
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), *hidden, keras.layers.Dense(10)]
    return classify(keras.Sequential(layers), sgd())


def check_the_last_layers_leave_before_the_first_has_a_gradient():
    x, y = easyscale.shard(*digits(96))
    for update in ("sharded", "replicated"):
        model = deep()
        with events(model.layers[1].kernel) as listed:
            model.fit(
                x, y, easyscale.local_batch(24), verbose=0, callbacks=[Distribute("ring", update=update, **PIECES)]
            )
        if comm.size == 1:
            assert listed == 4 * ["first layer"]
            return
        *steps, rest = " ".join(listed).split(" ends")
        steps = [step for step in steps if "leaves" in step]
        assert not rest and len(steps) >= 3, listed  # the first step may have to learn which gradients there are
        for step in steps:
            before, _, after = step.partition("first layer")
            assert before.count("leaves") >= 3 and 1 <= after.count("leaves") <= 2, step


def check_ranks_whose_gradients_leave_early_meet_those_whose_do_not():
    knows_none = mock.patch.object(type(backends.get()), "backward_pass", None)
    with knows_none if comm.rank == 1 else contextlib.nullcontext():
        return equal(conv(keras.optimizers.Adam), exchanges=["ring", "shared_memory"], distribute=PIECES)


class Turns(keras.Model):
    """A branch that only each second step goes through: there the others have no gradient, and their momentum rests."""

    def __init__(self):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.branches = [keras.layers.Dense(24, "relu") for _ in range(2)]
        self.last = keras.layers.Dense(10)
        self.calls = 0

    def build(self, shape):
        for branch in self.branches:
            branch.build((None, 64))
        self.last.build((None, 24))
        self.built = True

    def call(self, x, training=False):
        self.calls += bool(training)
        x = self.flatten(x)
        return self.last(self.branches[self.calls % 2](x) if training else sum(branch(x) for branch in self.branches))


def check_a_branch_that_some_steps_do_not_go_through():
    def build():
        return classify(Turns(), sgd())

    for update in ("sharded", "replicated"):
        equal(
            build, digits(96), exchanges=["ring"], distribute=PIECES | {"update": update}
        )  # no rank without data: all count alike


def check_weights_of_two_layers_and_a_layer_that_is_frozen():
    def build():
        inputs = keras.Input((8, 8, 1))
        shared, frozen = keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu", trainable=False)
        hidden = shared(frozen(shared(keras.layers.Flatten()(inputs))))
        return classify(keras.Model(inputs, keras.layers.Dense(10)(hidden)), keras.optimizers.Adam())

    return equal(build, exchanges=["ring", "shared_memory"], distribute=PIECES)


def check_gradients_that_are_changed_behind_the_backward_pass_are_refused():
    model, apply = deep(), easyscale.DistributedOptimizer.apply

    def doubled(self, grads, variables):
        apply(self, [2 * gradient for gradient in grads], variables)

    x, y = easyscale.shard(*digits(96))
    refused = contextlib.nullcontext() if comm.size == 1 else pytest.raises(ValueError, match="have left when it ends")
    with mock.patch.object(easyscale.DistributedOptimizer, "apply", doubled), refused:
        model.fit(x, y, easyscale.local_batch(24), verbose=0, callbacks=[Distribute("ring", **PIECES)])
    assert all(not native_of(variable)._post_accumulate_grad_hooks for variable in model.trainable_variables)


def check_a_backward_pass_knows_what_it_reaches():
    model = dense(sgd)()
    x, y = digits(4)
    used, unused = keras.layers.Dense(3), keras.layers.Dense(3)
    used.build((None, 3)), unused.build((None, 3))
    loss = model.compute_loss(x, keras.ops.convert_to_tensor(y), model(x)) + keras.ops.sum(used(keras.ops.ones((2, 3))))
    variables = [*model.trainable_variables, *used.trainable_variables, *unused.trainable_variables]
    known = WatchedPass().reached(loss, variables)
    loss.backward()
    assert known == [native_of(variable).grad is not None for variable in variables]
    assert known == [True] * (len(variables) - 2) + [False] * 2
