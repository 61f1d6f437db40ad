"""Metrics of all ranks' data: in `fit()`, in `evaluate()`, and predictions in one piece."""

import functools
import warnings

import keras
import numpy as np
from covering import full
from models import classify, conv_net, different_start, digits, equal, single_start

import easyscale
from easyscale import separate
from easyscale.callbacks import Distribute
from easyscale.errors import EasyScaleWarning

comm = easyscale.communicator.get()
COUNT = 4 * 24 + 2


def _digits_above_four():
    x, y = digits(COUNT)
    return x, (y > 4).astype("float32")[:, None]


def _binary(metrics=None, **options):
    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(8, activation="relu")]
        model = keras.Sequential([*layers, keras.layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=metrics and metrics(), **options)
        return model

    return build


@full
def check_losses_of_several_outputs_where_the_last_batch_is_whole_on_some_ranks():
    x, y = digits(4 * 24 + 1)

    def build(eagerly):
        inputs = keras.Input((8, 8, 1))
        flat = keras.layers.Flatten()(inputs)
        outputs = {"one": keras.layers.Dense(1, name="one")(flat), "two": keras.layers.Dense(1, name="two")(flat)}
        model = keras.Model(inputs, outputs)
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(keras.optimizers.SGD(1e-4), loss, run_eagerly=eagerly)
        return model

    labels = (y / 10).astype("float32")[:, None]
    for eagerly in (False, True):  # Keras weights by the number of samples where it knows that
        equal(functools.partial(build, eagerly), (x, {"one": labels, "two": 1 - labels}), validates=True)


@full
def check_metrics_that_are_not_means():
    def metrics():
        kinds = keras.metrics
        return [
            kinds.AUC(name="auc"),
            kinds.AUC(name="pr", curve="PR", num_thresholds=50),
            kinds.Precision(name="precision"),
            kinds.Recall(name="recall", thresholds=[0.3, 0.6]),
            kinds.PrecisionAtRecall(0.7, name="precision_at_recall"),
            kinds.SensitivityAtSpecificity(0.5, name="sensitivity"),
            kinds.F1Score(threshold=0.5, average="macro", name="f1"),
            kinds.FBetaScore(beta=2.0, threshold=0.5, average="macro", name="f2"),
            kinds.TruePositives(name="tp"),
            kinds.FalseNegatives(name="fn"),
            kinds.BinaryIoU(name="iou"),
            kinds.RootMeanSquaredError(name="rmse"),
            kinds.R2Score(name="r2"),
            kinds.CosineSimilarity(name="cosine"),
            "mean_absolute_error",
            "binary_accuracy",
        ]

    equal(_binary(metrics), _digits_above_four(), exchanges=["ring"], validates=True)


def _counts():
    return [keras.metrics.TruePositives(name="tp"), keras.metrics.FalseNegatives(name="fn"), "binary_accuracy"]


@full
def check_counts_of_a_validation_that_each_rank_has_whole():
    data = _digits_above_four()
    equal(_binary(_counts), data, exchanges=["ring"], validation_data=data)


@full
def check_counts_of_a_validation_whose_parts_are_the_same():
    x, y = np.ones((48, 8, 8, 1), "float32"), np.ones((48, 1), "float32")
    equal(_binary(_counts), (x, y), exchanges=["ring"], validates=True)
    different_start()
    model = _binary(_counts)()
    part = easyscale.shard(x, y)
    found = model.fit(*part, validation_data=part, verbose=0, callbacks=[Distribute()]).history
    assert found["val_tp"][-1] + found["val_fn"][-1] == 48, found


@full
def check_sums_in_a_validation_that_each_rank_has_whole():
    x, y = digits(COUNT)
    labels = (y / 10).astype("float32")[:, None]
    data = x, {"one": labels, "two": 1 - labels}

    def build():
        inputs = keras.Input((8, 8, 1))
        flat = keras.layers.Flatten()(inputs)
        outputs = {"one": keras.layers.Dense(1, name="one")(flat), "two": keras.layers.Dense(1, name="two")(flat)}
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(1e-4), {"one": keras.losses.Huber(reduction="sum"), "two": "mse"})
        return model

    equal(build, data, exchanges=["ring"], validation_data=data, validation_batch_size=24)
    equal(build, data, exchanges=["ring"], validates=True)


def check_a_validation_split_of_data_that_do_not_divide():
    x, y = digits(101)
    labels = (y > 4).astype("float32")[:, None]
    equal(_binary(_counts), (x, labels), exchanges=["ring"], validation_split=0.25)


class TellingOfItsOwn(keras.Sequential):
    def train_step(self, data):
        return {**super().train_step(data), "label": keras.ops.mean(data[1])}


@full
def check_a_number_of_a_step_that_is_no_metric_is_told_of():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = TellingOfItsOwn([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(*easyscale.shard(*digits(48)), batch_size=8, verbose=0, callbacks=[Distribute()])
    texts = [str(one.message) for one in told if "should be results of metrics" in str(one.message)]
    assert bool(texts) == easyscale.is_chief(), texts


class Renaming(keras.Sequential):
    """Returns results of metrics under other names, as the autoencoder of keras.io does."""

    def __init__(self, layers):
        super().__init__(layers)
        self.area = keras.metrics.AUC(name="auc")
        self.hits = keras.metrics.TruePositives(name="true_positives")
        self.misses = keras.metrics.FalseNegatives(name="mean")
        self.correct = keras.metrics.TrueNegatives(name="mean")  # of the same name as another

    def _rename(self, loss, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        predicted = keras.ops.stop_gradient(self(x))
        for metric in self.area, self.hits, self.misses, self.correct:
            metric.update_state(y, predicted)
        results = {"area": self.area, "positives": self.hits, "missed": self.misses, "correct": self.correct}
        # on PyTorch a count is its variable, which validation changes
        return {"total_loss": loss, **{name: metric.result() + 0 for name, metric in results.items()}}

    def train_step(self, data):
        return self._rename(super().train_step(data)["loss"], data)

    def test_step(self, data):
        return self._rename(super().test_step(data)["loss"], data)


def _renaming():
    model = Renaming([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model


def check_results_of_metrics_that_a_step_returns_under_other_names():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        equal(_renaming, _digits_above_four(), exchanges=["ring"], validates=True)
    assert not [one.message for one in told if "should be results of metrics" in str(one.message)]


@full
def check_weighted_metrics():
    weights = np.random.default_rng(0).uniform(0, 3, COUNT).astype("float32")
    equal(
        _binary(weighted_metrics=["AUC", "binary_accuracy"]),
        (*_digits_above_four(), weights),
        exchanges=["ring"],
        validates=True,
    )


@full
def check_confusion_matrix_of_classes():
    def build():
        model = conv_net()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = [keras.metrics.MeanIoU(10, "iou", sparse_y_pred=False), "sparse_top_k_categorical_accuracy"]
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics)
        return model

    equal(build, digits(COUNT), exchanges=["tree"], validates=True)


class Largest(keras.metrics.Metric):
    """A state that cannot be added up."""

    def __init__(self, name="largest", **options):
        super().__init__(name=name, **options)
        self.largest = self.add_weight(name="largest", initializer=keras.initializers.Constant(-1e9))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred)))

    def merge_state(self, metrics):
        for other in metrics:
            self.largest.assign(keras.ops.maximum(self.largest, other.largest))

    def result(self):
        return self.largest


def check_a_metric_with_a_merge_state_of_its_own():
    equal(_binary(lambda: [Largest()]), _digits_above_four(), exchanges=["tree"], validates=True)


class LargestError(keras.metrics.Metric):
    """Cannot be made by its config, which lacks `scale`, and whose `dtype` the constructor does not take."""

    def __init__(self, scale, name="largest_error"):
        super().__init__(name=name)
        self.scale = scale
        self.largest = self.add_variable(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(keras.ops.cast(y_true, y_pred.dtype) - y_pred))
        self.largest.assign(keras.ops.maximum(self.largest, self.scale * error))

    def merge_state(self, metrics):
        for other in metrics:
            self.largest.assign(keras.ops.maximum(self.largest, self.scale * other.result()))

    def result(self):
        return self.largest / self.scale


def check_a_metric_with_a_merge_state_and_without_a_config():
    equal(_binary(lambda: [LargestError(10.0)]), _digits_above_four(), exchanges=["ring"], validates=True)


class Kept(keras.metrics.Metric):
    """Says by `aggregation` that its states are not sums."""

    def __init__(self, name="kept", **options):
        super().__init__(name=name, **options)
        self.mean = self.add_variable((), keras.initializers.Constant(0), aggregation="mean", name="mean")
        self.first = self.add_variable((), keras.initializers.Constant(0), aggregation="only_first_replica", name="one")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.mean.assign(keras.ops.cast(easyscale.rank(), "float32"))
        self.first.assign(keras.ops.cast(easyscale.rank() + 5, "float32"))

    def result(self):
        return self.mean + 100 * self.first


@full
def check_states_that_say_how_they_are_merged():
    xs, ys = easyscale.shard(*_digits_above_four())
    history = _binary(lambda: [Kept()])().fit(xs, ys, verbose=0, callbacks=[Distribute()])
    assert history.history["kept"] == [(comm.size - 1) / 2 + 500]


@full
def check_evaluate_with_the_callback_is_that_of_all_ranks():
    x, y = digits(COUNT)
    single_start()  # on all ranks
    model = classify(conv_net(), "sgd")
    alone = model.evaluate(x, y, batch_size=24, verbose=0, return_dict=True)
    batch = easyscale.local_batch(24)
    for _ in range(2):  # the first time Distribute meets the model, and once more
        mine = model.evaluate(*easyscale.shard(x, y), batch_size=batch, verbose=0, callbacks=[Distribute()])
        np.testing.assert_allclose(mine, [alone["loss"], alone["accuracy"]], rtol=1e-5)
    if easyscale.is_chief():  # and without it that of one
        np.testing.assert_allclose(
            model.evaluate(x[:24], y[:24], verbose=0), classify(model, "sgd").evaluate(x[:24], y[:24], verbose=0)
        )


@full
def check_evaluate_with_a_masked_loss_and_uneven_data():
    words = np.random.default_rng(0).integers(0, 9, (COUNT, 5))
    single_start()  # a layer draws its seed when it is made
    layers = [keras.Input((5,), dtype="int32"), keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.Dense(9)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    alone = model.evaluate(words, words, batch_size=24, verbose=0)
    mine = easyscale.shard(words)
    for _ in range(2):
        together = model.evaluate(mine, mine, batch_size=easyscale.local_batch(24), verbose=0, callbacks=[Distribute()])
        np.testing.assert_allclose(together, alone, rtol=1e-5)
    if easyscale.is_chief():  # the same test function, by one rank
        np.testing.assert_allclose(model.evaluate(words, words, batch_size=24, verbose=0), alone, rtol=1e-5)


@full
def check_predictions_of_all_ranks_in_order():
    x, y = digits(COUNT)
    single_start()
    model = classify(conv_net(), "sgd")
    together = easyscale.unshard(model.predict(easyscale.shard(x), batch_size=7, verbose=0))
    np.testing.assert_allclose(together, model.predict(x, verbose=0), atol=1e-6)
    again = easyscale.unshard(model.predict(easyscale.shard(x), verbose=0, callbacks=[Distribute()]))
    np.testing.assert_allclose(again, together, atol=1e-6)


class Telling(keras.Sequential):
    """Returns the learning rate beside the metrics, as many a `train_step` does."""

    def train_step(self, data):
        return {**super().train_step(data), "rate": keras.ops.convert_to_tensor(self.optimizer.learning_rate)}


def _telling():
    model = Telling([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["AUC", "accuracy"])
    return model


@full
def check_metrics_are_merged_that_a_train_step_returns_beside_other_numbers():
    equal(_telling, _digits_above_four(), exchanges=["ring"])


@full
def check_a_rank_without_data_has_the_history_of_the_others():
    x, y = _digits_above_four()
    xs, ys = easyscale.shard(x[:96], y[:96])
    if comm.rank > 0 and comm.rank == comm.size - 1:
        xs, ys = xs[:0], ys[:0]
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((xs, ys)).batch(8)
    for build in _telling, _binary(lambda: ["accuracy"]):
        single_start()
        history = build().fit(data, epochs=2, verbose=0, callbacks=[Distribute()]).history
        assert len(history["accuracy"]) == 2
        everyones = comm.all_gather_object(history)
        assert all(theirs == everyones[0] for theirs in everyones)


class Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs, self.tests = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))

    def on_test_end(self, logs=None):
        self.tests.append(dict(logs))


@full
def check_every_callback_sees_the_merged_metrics_wherever_it_stands():
    different_start()
    x, y = digits(COUNT)
    model = classify(conv_net(), "sgd")
    xs, ys = easyscale.shard(x, y)
    before, after = Recorder(), Recorder()
    options = {"epochs": 2, "verbose": 0, "validation_data": (xs, ys), "callbacks": [before, Distribute(), after]}
    history = model.fit(xs, ys, batch_size=easyscale.local_batch(24), **options)
    assert before.epochs == after.epochs and before.tests == after.tests
    assert [logs["val_loss"] for logs in before.epochs] == history.history["val_loss"]
    assert set(before.epochs[0]) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    values = np.array([list(logs.values()) for logs in before.epochs])
    assert (comm.all_gather_rows(values) == values).all()
    # val_accuracy is a count of right answers over all samples of all ranks
    right = keras.ops.convert_to_numpy(model(x)).argmax(axis=1) == y
    np.testing.assert_allclose(history.history["val_accuracy"][-1], right.mean(), atol=1e-6)


class Evaluator(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if easyscale.is_chief():
            self.model.evaluate(*digits(48), verbose=0)

    def on_test_end(self, logs=None):
        self.on_epoch_end(0)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            self.on_epoch_end(0)


@full
def check_the_chief_may_evaluate_by_itself_within_fit():
    xs, ys = easyscale.shard(*digits(COUNT))
    options = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (xs, ys)}
    different_start()
    model = classify(conv_net(), "sgd")
    history = model.fit(xs, ys, batch_size=8, callbacks=[Distribute(), Evaluator()], **options)
    values = np.array([history.history["val_loss"], history.history["loss"]])
    assert (comm.all_gather_rows(values) == values).all()


def check_a_part_that_one_rank_evaluates_for_itself_is_told_of():
    xs, ys = easyscale.shard(*digits())
    model = classify(conv_net(), "sgd")
    model.fit(xs, ys, batch_size=8, epochs=1, callbacks=[Distribute()], verbose=0)
    separate.warn_of_evaluation.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.evaluate(*digits(16), verbose=0)
        model.evaluate(xs, ys, verbose=0, callbacks=[Distribute()])
        assert not [warning for warning in seen if warning.category is EasyScaleWarning]
        for _ in range(2):
            model.evaluate(xs, ys, verbose=0)
    told = [str(warning.message) for warning in seen if warning.category is EasyScaleWarning]
    assert len(told) == easyscale.is_chief()
    assert all("each worker has the result of its own part" in message for message in told)


@full
def check_evaluating_after_fit_needs_no_other_rank():
    xs, ys = easyscale.shard(*digits())
    model = classify(conv_net(), "sgd")
    model.fit(xs, ys, batch_size=8, epochs=1, callbacks=[Distribute()], verbose=0)
    if easyscale.is_chief():
        model.evaluate(xs, ys, verbose=0)
        model.predict(xs, verbose=0)


def check_what_is_exchanged_is_among_the_metrics_if_asked():
    model = classify(conv_net(), keras.optimizers.SGD(0.1))
    x, y = easyscale.shard(*digits(96))
    seen = []
    callbacks = [
        easyscale.callbacks.Distribute("ring", update="replicated"),
        easyscale.callbacks.ExchangeMetrics(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs))),
    ]
    batch = easyscale.local_batch(24)
    history = model.fit(x, y, batch, epochs=3, verbose=0, validation_data=(x, y), callbacks=callbacks).history
    names = ["exchange_messages", "exchange_bytes", "exchange_ms", "wait_ms", "data_ms"]
    assert [{name: logs[name] for name in names} for logs in seen] == [
        {name: history[name][epoch] for name in names} for epoch in range(3)
    ]
    size, nbytes = easyscale.size(), 4 * model.count_params()
    assert "val_loss" in history and min(map(min, (history[name] for name in names))) >= 0
    if size == 1:
        assert {*history["exchange_bytes"], *history["exchange_ms"]} == {0.0}
        return
    sent = 2 * nbytes * (size - 1) / size  # by the ring; a little more to agree on steps, and for gaps
    assert all(0.95 * sent <= value <= 1.2 * sent + 2000 for value in history["exchange_bytes"]), (history, sent)
    assert all(value >= 2 * (size - 1) for value in history["exchange_messages"])
    assert history["exchange_ms"][-1] > 0
