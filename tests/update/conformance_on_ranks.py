"""Every update there is, on real processes: a `fit()` with it is one of one process, and so is the state behind it.

An update in a new file of `easyscale/update/` is found by its name, and shown with all optimizers that it does not
refuse.
"""

import functools
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from models import assert_as_one_process, assert_equal_ranks, conv, different_start, digits, equal, sgd  # noqa: E402

import easyscale  # noqa: E402
from easyscale.update import available  # noqa: E402
from easyscale.update.base import Update  # noqa: E402

OPTIMIZERS = {
    "SGD": functools.partial(sgd, weight_decay=0.01, clipnorm=0.5),
    "Adam": functools.partial(keras.optimizers.Adam, global_clipnorm=1.0),
    "Lamb, which looks at whole weights": keras.optimizers.Lamb,
    "one that accumulates": functools.partial(keras.optimizers.Adam, gradient_accumulation_steps=3),
    "one that scales": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
}
# Not those in which workers step alone, as nobody does in one process: `local_on_ranks.py` has these.
UPDATES = {name: update for name, update in available().items() if issubclass(update, Update)}
CASES = [
    (name, title, build)
    for name, update in UPDATES.items()
    for title, build in OPTIMIZERS.items()
    if not update.why_not(build(), [])
]


def check_an_update_takes_the_steps_of_one_process():
    assert {name for name, _, _ in CASES} == {*UPDATES}, "an update that no optimizer can use"
    for name, title, build in CASES:
        try:
            equal(conv(build), exchanges=["ring"], distribute={"update": name})
        except AssertionError as error:
            raise AssertionError(f"update='{name}' of {title}: {error}") from error


def check_the_state_is_whole_behind_a_fit():
    for name in UPDATES:
        data = digits(4 * 24 + 2)

        def single(data=data):
            model = conv(keras.optimizers.Adam)()
            model.fit(*data, batch_size=24, epochs=3, shuffle=False, verbose=0)
            return model

        def distributed(name=name, data=data):
            model, batch = conv(keras.optimizers.Adam)(), easyscale.local_batch(24)
            callbacks = [easyscale.callbacks.Distribute("ring", update=name)]
            fit = functools.partial(model.fit, *easyscale.shard(*data), batch_size=batch, shuffle=False, verbose=0)
            fit(epochs=1, callbacks=callbacks)
            state = [np.array(variable) for variable in model.optimizer.variables]
            assert_equal_ranks(state)
            fit(epochs=2, callbacks=callbacks)
            return model

        assert_as_one_process(distributed, single)


def check_a_file_that_is_written_in_a_fit_goes_on_in_one_process():
    for name in UPDATES:
        data = digits(4 * 24 + 2)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "1.keras")

            def single(data=data, file=file):
                model = keras.models.load_model(file)
                model.fit(*data, batch_size=24, initial_epoch=1, epochs=2, shuffle=False, verbose=0)
                return model

            different_start()
            model, batch = conv(keras.optimizers.Adam)(), easyscale.local_batch(24)
            distribute = easyscale.callbacks.Distribute("ring", update=name)
            files = keras.callbacks.ModelCheckpoint(Path(folder, "{epoch}.keras"))
            mine = easyscale.shard(*data)
            model.fit(*mine, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=[distribute, files])
            assert_as_one_process(lambda model=model: model, single)
