"""Models and data for tests of training, and the comparison with one process."""

import functools
import gzip
import itertools
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
from covering import covering

import easyscale

TOLERANCE = 1e-5

IN_GRAPH = ["parameter_server", "ring", "tree"]  # the exchanges between devices that need no GPU
REPLICATION = easyscale.replication.check(None)
easyscale.scope()  # makes the devices, before anything else
# Each exchange; one worker has nothing to exchange. Those that are only on GPUs have checks of their own.
_ON_CPUS = [name for name in easyscale.exchange.available() if name not in ("cuda_ipc", "nccl")]
EXCHANGES = IN_GRAPH if REPLICATION == "in_graph" else _ON_CPUS[: None if easyscale.size() > 1 else 1]
_turns = itertools.cycle(EXCHANGES)
# Processes, and devices of each, over which cases are spread.
_SHAPES = [(1, 2), (1, 4), (2, 2)] if REPLICATION == "in_graph" else [(3, 0), (2, 0), (4, 0)]
_cases = []


def digits(count=240):
    """The first `count` of the handwritten digits: `(count, 8, 8, 1)` in [0, 1], and labels."""
    # Not by `sklearn.datasets.load_digits`: what that imports takes longer than a check.
    (folder,) = find_spec("sklearn").submodule_search_locations
    with gzip.open(Path(folder, "datasets", "data", "digits.csv.gz"), "rt") as file:
        rows = np.loadtxt(itertools.islice(file, count), "float32", delimiter=",", ndmin=2)
    return (rows[:, :-1] / 16).reshape(-1, 8, 8, 1), rows[:, -1].astype("int32")


def conv_net(name="model"):
    """A small conv net for the digits, with logits."""
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers, name=name)


def classify(model, optimizer, **options):
    """Compile for the digits."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def sgd(**options):
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def conv(optimizer, **options):
    """Return a function that builds a small conv net, with what `optimizer()` returns."""
    return lambda: classify(conv_net(), optimizer(), **options)


def dense(optimizer, **options):
    """Return a function that builds one layer, with what `optimizer()` returns."""

    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), optimizer(), **options)

    return build


def in_scope(build):
    """Return what `build` returns, made where in-graph replication wants it."""
    with easyscale.scope():
        return build()


def over_exchanges(check):
    """Have a check be called with exchanges, each of which it is called with on some number of workers or devices.

    Each number has each case and each exchange, and all of their products are in `make test-all`; see `covering.py`.
    """
    name = check.__name__
    _cases.append(name)

    @functools.wraps(check)
    def with_exchanges():
        processes = easyscale.communicator.get().size
        shape = processes, easyscale.size() // processes if REPLICATION == "in_graph" else 0
        if shape not in _SHAPES:
            return check(EXCHANGES)
        rows = covering(case=_cases, exchange=EXCHANGES, shape=_SHAPES)
        return check([row["exchange"] for row in rows if (row["case"], row["shape"]) == (name, shape)])

    return with_exchanges


def different_start():
    """Seed each rank differently: only the chief starts as the single process does."""
    keras.utils.set_random_seed(1 + easyscale.rank())


def single_start():
    keras.utils.set_random_seed(1)


def assert_equal_ranks(variables):
    """All ranks hold the same bits."""
    bits = np.concatenate([np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in variables])
    rows = easyscale.communicator.get().all_gather_rows(bits)
    assert (rows == rows[0]).all(), "ranks differ"


def assert_as_one_process(distributed, single, tolerance=TOLERANCE):
    """Compare the weights after `distributed()`, on all ranks, with those after `single()`, run by the chief alone.

    Both return a trained model, or a model and its history, which is then compared as well. `distributed` may be a list
    of functions. Returns the largest difference of a weight.
    """
    reference, expected = None, None
    if easyscale.is_chief():
        single_start()
        reference, expected = _with_history(single())
    deltas = [0.0]
    for run in distributed if isinstance(distributed, list) else [distributed]:
        different_start()
        model, history = _with_history(run())
        assert_equal_ranks(model.get_weights())
        if reference is not None:
            pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
            deltas.append(max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs))
            assert deltas[-1] <= tolerance, f"weights differ from those of one process by {deltas[-1]}"
        if expected is not None:
            assert set(history.history) == set(expected.history)
            for key, values in expected.history.items():
                np.testing.assert_allclose(history.history[key], values, rtol=1e-4, atol=tolerance, err_msg=key)
    return max(deltas)


def equal(
    build,
    data=None,
    global_batch=24,
    epochs=2,
    exchanges=None,
    tolerance=TOLERANCE,
    validates=False,
    distribute=None,
    callbacks=(),
    **options,
):
    """Train as one process, and by all ranks with each exchange, on the same batches; compare.

    Args:
        build: Function that returns a compiled model.
        data: `x, y` or `x, y, sample_weight`. Defaults to four batches and 2 samples of the digits: in the last batch
            some of three ranks and more have no part.
        exchanges: List of names. Defaults to the default and one of the others, in turns; in-graph to one, in turns.
        validates: Bool. Whether there is a validation, on the training data.
        distribute: Dict. Options for `Distribute`.
        callbacks: Of one process and of all.
        options: For `fit()`.

    Returns:
        The largest difference of a weight.
    """
    data = data if data is not None else digits(4 * 24 + 2)

    def fit(model, x, y, sample_weight=None, **more):
        validation = (x, y) if sample_weight is None else (x, y, sample_weight)
        if validates:
            more["validation_data"] = validation
        common = {"epochs": epochs, "shuffle": False, "verbose": 0, **options}
        more["callbacks"] = [*more.get("callbacks", ()), *callbacks]
        return model, model.fit(x, y, sample_weight=sample_weight, **common, **more)

    made = {}  # by what ranks own: a model, its first variables, and the exchange that it was traced with

    def in_graph(exchange):
        model = in_scope(build)
        mine, batch = easyscale.shard(*data), easyscale.local_batch(global_batch)
        callbacks = [easyscale.callbacks.Distribute(exchange, **(distribute or {}))]
        return fit(model, *mine, batch_size=batch, callbacks=callbacks)

    def distributed(exchange):
        owner = easyscale.exchange.get(exchange).owned(1000).stop
        if owner in made:
            model, first, switch = made[owner]
            for variable, value in zip(_variables(model), first, strict=True):
                variable.assign(value)
        else:
            model, switch = build(), Switch()
            if model.built:
                model.optimizer.build(model.trainable_variables)
                made[owner] = model, [np.array(variable) for variable in _variables(model)], switch
        switch.turn_to(exchange)
        callbacks = [easyscale.callbacks.Distribute(switch, **(distribute or {}))]
        mine, batch = easyscale.shard(*data), easyscale.local_batch(global_batch)
        return fit(model, *mine, batch_size=batch, callbacks=callbacks)

    if REPLICATION == "in_graph":
        exchanges = exchanges or [next(_turns)]
        distributed = in_graph
    elif exchanges is None:
        exchanges = ["auto", next(_turns)]
    runs = [functools.partial(distributed, name) for name in exchanges]
    return assert_as_one_process(runs, lambda: fit(build(), *data, batch_size=global_batch), tolerance)


class Switch(easyscale.exchange.Exchange):
    """Now this exchange, now that: so a model is traced once, and trained with each."""

    has_servers = True

    def turn_to(self, name):
        self.connect(easyscale.communicator.get())
        self.now = easyscale.exchange.get(name)

    def lend(self, *args, **options):
        return self.now.lend(*args, **options)

    def owned(self, length):
        return self.now.owned(length)

    def allreduce(self, buffer):
        self.now.allreduce(buffer)

    def _reduce(self, buffer):
        self.now.reduce(buffer)

    def _gather(self, buffer):
        self.now.gather(buffer)


def _variables(model):
    return [*model.variables, *model.optimizer.variables]


def _with_history(result):
    return result if isinstance(result, tuple) else (result, None)
