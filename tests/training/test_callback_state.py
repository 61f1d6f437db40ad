"""What callbacks remember comes back, and nothing that a checkpoint says of them is a path, a text or a setting."""

import collections
import json
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import pytest

from easyscale.errors import EasyScaleError, EasyScaleWarning
from easyscale.training import callback_state
from easyscale.training.broadcast_arrays import broadcast_arrays
from easyscale.training.checkpoint_contents import check_contents


class Own(keras.callbacks.Callback):
    """Has all that a callback may remember, and some that it must not."""

    easyscale_texts = ("phase",)
    runs = 0

    def __init__(self, count=0, folder="out"):
        super().__init__()
        self.count, self.folder, self.where, self.phase = count, folder, Path("here"), "warm-up"
        self.act, self.nothing, self.best = print, None, np.inf
        self.by_epoch, self.seen, self.last = {}, set(), collections.deque(maxlen=2)
        self.counts, self.names = collections.Counter(), {}

    @property
    def total(self):
        return self.count


def stored(*callbacks):
    """What a checkpoint has of the callbacks, as it comes from its file."""
    arrays = {}
    return json.loads(json.dumps(callback_state.collect(callbacks, arrays))), arrays


def test_what_was_remembered_comes_back():
    first = Own()
    callback_state.remember([first])
    first.count, first.phase, first.best, first.nothing, first.runs = 3, "main", 0.5, [np.ones(2), 1.5], 2
    first.by_epoch[7], first.by_epoch[np.int64(8)] = 0.25, 0.5
    first.seen |= {3, 1}
    first.last.extend([1, 2, 3])
    first.counts["cat"] += 2
    first.names = {"a": {"b": [1, (2, None)]}}
    second = Own()
    second.last.append(9)
    callback_state.put_back([second], *stored(first))
    assert (second.count, second.phase, second.best, second.runs) == (3, "main", 0.5, 2)
    np.testing.assert_array_equal(second.nothing[0], np.ones(2))
    assert second.by_epoch == {7: 0.25, 8: 0.5} and second.seen == {1, 3}
    assert second.last == collections.deque([2, 3]) and second.last.maxlen == 2
    assert second.counts == {"cat": 2} and isinstance(second.counts, collections.Counter)
    assert second.names == {"a": {"b": [1, (2, None)]}}


def test_texts_are_told_of_and_not_taken():
    first, second = Own(), Own()
    callback_state.remember([first])
    first.folder, first.nothing = "elsewhere", ["a text"]
    with pytest.warns(
        EasyScaleWarning, match=r"Received: Own.folder, Own.nothing\. .* easyscale_texts = \('folder',\)"
    ):
        callback_state.put_back([second], *stored(first))
    assert (second.folder, second.nothing) == ("out", None)
    callback_state.put_back([second], callback_state.collect([first], {}, texts=True), {}, texts=True)
    assert second.folder == "elsewhere"  # for another worker of the same job


MEANT = [("folder", "x"), ("where", 1), ("act", 1), ("nothing", "x"), ("nothing", {"list": ["x"]})]
MEANT += [("on_epoch_end", 1), ("set_model", None), ("total", 5), ("model", 1), ("_model", 1), ("__class__", 1)]
MEANT += [("params", 1), ("_easyscale_before", 1), ("a b", 1), ("names", {"items": [[1, "x"]]})]


@pytest.mark.parametrize(("name", "value"), MEANT)
def test_what_is_none_of_a_callbacks_state_is_not_set(name, value):
    one = Own()
    before = dict(vars(one))
    callback_state.put_back([one], [{"class": f"{__name__}.Own", "state": {name: value}}], {})
    assert vars(one) == before


KERAS = keras.callbacks


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: KERAS.ModelCheckpoint("a.keras"), "filepath", "/etc/passwd"),
        (lambda: KERAS.ModelCheckpoint("a.keras"), "save_freq", 1),
        (lambda: KERAS.ModelCheckpoint("a.keras"), "save_best_only", True),
        (lambda: KERAS.CSVLogger("a.csv"), "filename", "/etc/passwd"),
        (lambda: KERAS.CSVLogger("a.csv"), "append", True),
        (lambda: KERAS.CSVLogger("a.csv"), "keys", {"list": ["=1+1"]}),
        (lambda: KERAS.BackupAndRestore("a"), "backup_dir", "/etc"),
        (lambda: KERAS.TensorBoard("a"), "log_dir", "/etc"),
        (lambda: KERAS.EarlyStopping(), "patience", 10**9),
        (lambda: KERAS.EarlyStopping(), "monitor", "other"),
        (lambda: KERAS.EarlyStopping(), "monitor_op", None),
    ],
)
def test_no_setting_of_keras_callbacks_is_taken(make, name, value):
    one = make()
    before = repr(getattr(one, name))
    callback_state.put_back([one], [{"class": callback_state._class_of(one), "state": {name: value}}], {})
    assert repr(getattr(one, name)) == before


def test_what_keras_callbacks_count_comes_back():
    first, second = KERAS.EarlyStopping(), KERAS.EarlyStopping()
    callback_state.remember([first])
    first.best, first.wait, first.best_weights = 0.5, 2, [np.ones(2)]
    history, other = KERAS.History(), KERAS.History()
    history.history, history.epoch, other.history = {"loss": [1.0], "note": ["a"]}, [0], {}
    callback_state.put_back([second, other], *stored(first, history))
    assert (second.best, second.wait, len(second.best_weights)) == (0.5, 2, 1)
    assert other.history == history.history and other.epoch == [0]


def test_arrays_of_any_type_reach_other_ranks(run_ranks):
    given = {
        "texts": np.array(["a", "bcd"]),
        "bytes": np.array([b"a", b"bcd"]),
        "times": np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"),
        "halves": np.array([1.5, 2.0], ml_dtypes.bfloat16),
        "numbers": np.arange(6, dtype=">i2").reshape(2, 3),
        "one": np.array(3.0),
    }
    for found in run_ranks(3, lambda comm: broadcast_arrays(comm, given if comm.rank == 1 else {}, root=1)):
        for name, array in given.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[name], array)


WHOLE = {"version": 1, "epoch": 0, "steps": 5, "ended": False, "stopped": False, "weights": [["a", [1]]]}
WHOLE |= {"optimizers": [["Adam"]], "callbacks": [], "random": [{}], "seeds": [[]]}
WHOLE |= {"data": [{"iterators": 1, "batches": 2, "calls": 2}]}


@pytest.mark.parametrize(
    ("about", "what"),
    [
        ({**WHOLE, "version": 2}, "must be of this version .* Received: version 2"),
        ({name: value for name, value in WHOLE.items() if name != "data"}, "that EasyScale has written"),
        ({**WHOLE, "epoch": -1}, "that EasyScale has written"),
        ({**WHOLE, "steps": "5"}, "that EasyScale has written"),
        ({**WHOLE, "data": [{"iterators": 1}]}, "that EasyScale has written"),
        ({**WHOLE, "random": [{}, {}]}, "that EasyScale has written"),
        ({**WHOLE, "callbacks": [5]}, "that EasyScale has written"),
        ([], "that EasyScale has written"),
        (None, "that EasyScale has written"),
    ],
)
def test_what_is_no_checkpoint_of_a_fit_is_refused(about, what):
    check_contents(WHOLE, Path("run"))
    with pytest.raises(EasyScaleError, match=what):
        check_contents(about, Path("run"))
