"""A pipeline takes the steps of one process: weights, history, metrics, and what comes after `fit()`.

Each check returns the largest difference of a weight.
"""

import functools
import itertools

import keras
import numpy as np
import tensorflow as tf
from graphs import dense_net, losses_of_layers, normalized, shared_layer, tied, two_by_two, u_net

import easyscale
from easyscale.parallel.pipeline.batch import sizes_of

comm = easyscale.communicator.get()
SCHEDULES = easyscale.parallel.pipeline.schedules.available()
# Each schedule with 1, 4 and 8 micro-batches; the stages are all ranks.
PIPELINES = [
    {"stages": comm.size, "microbatches": microbatches, "schedule": schedule, "cut": "weights"}
    for schedule, microbatches in itertools.product(SCHEDULES, [1, 4, 8])
]
# `make test` has 3 ranks. There a model trains by each pipeline with one optimizer or the other, and the rest by one
# pipeline in turns; other numbers of ranks, in `make test-all`, have all products.
IS_SHORT = comm.size == 3
OF_SGD, OF_ADAM = (PIPELINES[::2], PIPELINES[1::2]) if IS_SHORT else (PIPELINES, PIPELINES)
SOME = [PIPELINES[1], PIPELINES[-1]]
_turns = itertools.cycle(SOME)


def generator():
    """Random numbers that are the same in each check, whatever came before."""
    return np.random.default_rng(0)


def sgd():
    return sgd_of()


def sgd_of(**options):
    return keras.optimizers.SGD(0.05, momentum=0.9, **options)


def adam():
    return keras.optimizers.Adam(0.01, weight_decay=0.004)


def compiled(build, optimizer, **options):
    """Return a function that builds a model and compiles it."""

    def make():
        model = build()
        model.compile(optimizer(), **options)
        return model

    return make


def classifier(optimizer, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(dense_net, optimizer, loss=loss, metrics=["accuracy"], **options)


def classes(count=74):
    return generator().normal(size=(count, 12)).astype("float32"), generator().integers(0, 10, count)


def masks(optimizer):
    return compiled(u_net, optimizer, loss="mse", metrics=["mae"])


def images(count=50):
    x = generator().normal(size=(count, 8, 8, 1)).astype("float32")
    return x, np.tanh(2 * x)


def two_tasks(optimizer):
    losses = {"early": "mse", "late": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    weights = {"early": 0.3, "late": 1.0}
    return compiled(two_by_two, optimizer, loss=losses, loss_weights=weights, metrics={"late": "accuracy"})


def tasks(count=50):
    x = {"a": generator().normal(size=(count, 6)), "b": generator().normal(size=(count, 3))}
    y = {"early": generator().normal(size=(count, 2)), "late": generator().integers(0, 4, count)}
    return {name: one.astype("float32") for name, one in x.items()}, y


def equal(make, data, pipelines=None, batch=24, epochs=2, tolerance=1e-5, validates=False, options=None, **more):
    """Train as one process, and as pipelines; compare weights, optimizer, history, and what comes afterwards."""
    pipelines = pipelines or ([next(_turns)] if IS_SHORT else SOME)
    common = {"epochs": epochs, "shuffle": False, "verbose": 0, **more}

    def fit(model, data, batch, *callbacks):
        x, y, *weights = data
        if validates:
            common["validation_data"] = tuple(data)
        weights = weights[0] if weights else None
        return model.fit(x, y, sample_weight=weights, batch_size=batch, callbacks=list(callbacks), **common)

    if comm.is_chief:
        keras.utils.set_random_seed(1)
        reference = make()
        expected = fit(reference, data, batch)
    deltas = []
    for pipeline in pipelines:
        keras.utils.set_random_seed(1 + comm.rank)
        model = make()
        parallel = easyscale.parallel.Pipeline(**pipeline)
        distribute = easyscale.callbacks.Distribute(**{"exchange": "ring", **(options or {})}, model_parallel=parallel)
        mine, local = easyscale.shard(*data), easyscale.local_batch(batch)
        history = fit(model, mine, local, distribute)
        delta = np.zeros(1)
        if comm.is_chief:
            delta[0] = largest_difference(model, reference)
            assert delta[0] <= tolerance, f"{pipeline}: weights differ from those of one process by {delta[0]}"
            compare(model, history.history, reference, expected.history, tolerance)
        comm.broadcast(delta)
        deltas.append(float(delta[0]))
        everywhere = comm.all_gather_object(
            [float(np.sum(one, dtype="float64")) for one in [*model.get_weights(), *model.optimizer.variables]]
        )
        assert all(one == everywhere[0] for one in everywhere), "ranks differ"
    return max(deltas)


def largest_difference(model, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), other.get_weights(), strict=True))


def compare(model, history, reference, expected, tolerance):
    """Compare optimizers and histories."""
    for ours, theirs in zip(model.optimizer.variables, reference.optimizer.variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=tolerance, err_msg=ours.path)
    assert set(history) == set(expected)
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-4, atol=tolerance, err_msg=key)


# Weights, and all that is said of them


def check_sgd_of_a_dense_net():
    return equal(classifier(sgd), classes(), OF_SGD, validates=True)


def check_adam_of_a_dense_net():
    return equal(classifier(adam), classes(), OF_ADAM)


def check_sgd_of_long_skips():
    return equal(masks(sgd), images(), OF_SGD, batch=16)


def check_adam_of_long_skips():
    return equal(masks(adam), images(), OF_ADAM, batch=16)


def check_sgd_of_two_inputs_and_two_outputs():
    return equal(two_tasks(sgd), tasks(), OF_SGD, batch=16, validates=True)


def check_adam_of_two_inputs_and_two_outputs():
    return equal(two_tasks(adam), tasks(), OF_ADAM, batch=16)


def check_a_cut_by_measured_time():
    """All ranks cut where the chief has measured, and what it has measured with changes nothing."""
    return equal(masks(adam), images(), [{"stages": comm.size, "microbatches": 4, "cut": "time"}], batch=16)


def check_sample_weights():
    x, y = classes()
    return equal(classifier(sgd), (x, y, generator().uniform(0, 2, len(x)).astype("float32")))


def check_a_sum_of_losses():
    make = compiled(dense_net, sgd, loss=keras.losses.MeanSquaredError(reduction="sum"), metrics=["mse"])
    x, _ = classes()
    return equal(make, (x, 0.1 * x[:, :10]))


def check_losses_of_layers():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    deltas = [equal(compiled(losses_of_layers, sgd, loss=loss), classes(), validates=True)]
    deltas.append(equal(compiled(losses_of_layers, adam, loss=loss, metrics=["accuracy"]), classes()))
    return max(deltas)


def check_no_loss_but_those_of_layers():
    x, _ = classes()
    return equal(compiled(losses_of_layers, sgd), (x, None))


def check_class_weights_and_clipping():
    return equal(classifier(lambda: sgd_of(clipnorm=0.02)), classes(), class_weight={n: 0.5 + n / 5 for n in range(10)})


def check_clipping_by_the_norm_over_all_stages():
    return equal(classifier(lambda: sgd_of(global_clipnorm=0.05)), classes())


def check_a_loss_scale_that_does_not_change():
    return equal(classifier(lambda: sgd_of(loss_scale_factor=128.0, global_clipnorm=0.05)), classes())


def accumulates():
    return keras.optimizers.Adam(0.01, gradient_accumulation_steps=3, clipnorm=0.1)


def check_gradients_that_are_summed_up_over_steps():
    return equal(classifier(accumulates), classes(), epochs=3)


def scaled():
    """Its scale doubles until a gradient overflows, on one stage before it does on others."""
    return keras.optimizers.LossScaleOptimizer(
        sgd_of(global_clipnorm=0.5), initial_scale=2.0**124, dynamic_growth_steps=2
    )


def check_all_stages_skip_a_step_when_the_gradients_of_one_overflow():
    return equal(classifier(scaled), classes(), epochs=5)


def in_policy(policy, optimizer, **options):
    """Return a function that builds a classifier in a policy; a `LossScaleOptimizer` comes with 'mixed_float16'."""

    def make():
        keras.config.set_dtype_policy(policy)
        try:
            return classifier(optimizer, **options)()
        finally:
            keras.config.set_dtype_policy("float32")

    return make


def check_mixed_precision_of_one_micro_batch_is_that_of_one_process():
    one = [{"stages": comm.size, "microbatches": 1}]
    return max(equal(in_policy(policy, sgd), classes(), one) for policy in ("mixed_float16", "mixed_bfloat16"))


def check_mixed_precision_rounds_the_gradients_of_each_micro_batch():
    """As it would those of a smaller batch: to 11 bits, or 8."""
    tolerances = {"mixed_float16": 1e-3, "mixed_bfloat16": 5e-3}
    return max(equal(in_policy(name, sgd), classes(), tolerance=most) for name, most in tolerances.items())


def check_a_schedule_of_the_learning_rate():
    rates = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.7)
    return equal(classifier(lambda: keras.optimizers.SGD(rates)), classes())


def check_optimizers_that_look_at_whole_layers_or_have_state_of_none():
    deltas = [equal(classifier(make), classes(), SOME[:1]) for make in (keras.optimizers.Lamb, keras.optimizers.Nadam)]
    return max(deltas)


def check_embeddings_whose_gradients_are_rows():
    def build():
        return keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                keras.layers.Embedding(20, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(24, activation="tanh"),
                keras.layers.Dense(16, activation="tanh"),
                keras.layers.Dense(10),
            ]
        )

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    words = generator().integers(0, 20, (50, 6)), generator().integers(0, 10, 50)
    deltas = [
        equal(compiled(build, optimizer, loss=loss), words, batch=16)
        for optimizer in (keras.optimizers.Adam, lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05))
    ]
    return max(deltas)


def looks_up_twice(reverses):
    """An embedding on the first stage and on the last one, where it may be a layer that is no lookup as well."""
    first, last = keras.Input((4,), dtype="int32"), keras.Input((4,), dtype="int32")
    embedding = keras.layers.ReversibleEmbedding(6, 4)
    x = keras.layers.Flatten()(embedding(first))
    for units in (8, 8, 4):
        x = keras.layers.Dense(units, activation="tanh")(x)
    if reverses:
        x = embedding(x, reverse=True)
    x = keras.layers.Concatenate()([x, keras.layers.Flatten()(embedding(last))])
    return keras.Model([first, last], keras.layers.Dense(1)(x))


def equal_of_lookups(pipelines=None):
    """Optimizers square, and clip, each row that was looked up by itself, unless a stage's gradient is no rows."""
    words = generator().integers(0, 6, (2, 19, 4))
    data = list(words), generator().normal(size=(19, 1)).astype("float32")
    optimizers = adam, lambda: sgd_of(clipvalue=0.01), lambda: sgd_of(global_clipnorm=0.05)
    deltas = [
        equal(compiled(functools.partial(looks_up_twice, reverses), optimizer, loss="mse"), data, pipelines, batch=8)
        for reverses, optimizer in itertools.product((False, True), optimizers)
    ]
    return max(deltas)


def check_embeddings_of_several_stages_whose_gradients_are_rows_on_all_or_on_some():
    return equal_of_lookups()


def check_dropout_of_one_micro_batch_draws_what_one_process_draws():
    def build():
        kept = list(dense_net().layers)
        return keras.Sequential([keras.Input((12,)), *kept[:2], keras.layers.Dropout(0.5), *kept[2:]])

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return equal(compiled(build, sgd, loss=loss), classes(), PIPELINES[:1])


def check_attention():  # by SGD: the gradient of a key's bias is zero but for rounding, of which Adam makes steps
    def build():
        inputs = x = keras.Input((5, 12))
        for number in range(3):
            y = keras.layers.LayerNormalization()(x)
            x = x + keras.layers.MultiHeadAttention(2, 6, name=f"attention_{number}")(y, y)
            y = keras.layers.Dense(24, activation="gelu")(keras.layers.LayerNormalization()(x))
            x = x + keras.layers.Dense(12)(y)
        return keras.Model(inputs, keras.layers.Dense(3)(x[:, -1]))

    x = generator().normal(size=(50, 5, 12)).astype("float32")
    return equal(compiled(build, sgd, loss="mse"), (x, np.tanh(x[:, 0, :3])), batch=16)


def masked():
    """Words of several lengths, of which the last layer puts out one for each: padding counts nowhere."""
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8, mask_zero=True)(inputs)
    for number in range(2):
        x = x + keras.layers.MultiHeadAttention(2, 4, name=f"attention_{number}")(x, x)
        x = keras.layers.LSTM(8, return_sequences=True, name=f"memory_{number}")(x)
    return keras.Model(inputs, keras.layers.Dense(20, name="last")(x))


def sentences(count=50):
    words, lengths = generator().integers(1, 20, (count, 6)), generator().integers(1, 7, count)
    return words * (np.arange(6) < lengths[:, None]), generator().integers(0, 20, (count, 6))


def check_masks():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    make = compiled(masked, sgd, loss=loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    weights = generator().uniform(0, 2, (50, 6)).astype("float32")
    return max(equal(make, sentences(), batch=16), equal(make, (*sentences(), weights), SOME[:1], batch=16))


def attended():
    """Layers find masks on what they are given; attention takes those away, so that what is added up has none."""
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8, mask_zero=True, name="words")(inputs)
    y = keras.layers.MultiHeadAttention(2, 4, name="attends")(x, x)
    y = keras.layers.Dense(8, name="wide")(keras.layers.Add(name="sum")([y, x]))
    other = keras.layers.Embedding(20, 8, mask_zero=True, name="others")(inputs)
    inner = keras.Input((6, 8))
    nested = keras.Model(inner, keras.layers.Dense(8)(keras.layers.Activation("tanh")(inner)), name="nested")
    y = keras.layers.Attention(name="looks")([y, nested(other)])
    return keras.Model(inputs, keras.layers.Dense(20, name="last")(keras.layers.Multiply()([y, nested(other)])))


def grouped():
    """Two tensors that have one mask go to another stage; grouped queries leave it where it is."""
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8, mask_zero=True, name="words")(inputs)
    other = keras.layers.Activation("tanh")(x)
    y = keras.layers.GroupQueryAttention(4, 2, 1, use_bias=False, name="attends")(x, x)
    y = keras.layers.Dense(8, name="wide")(y)
    first, second = (keras.layers.Attention()([y, value]) for value in (x, other))
    return keras.Model(inputs, keras.layers.Dense(20, name="last")(first + second))


def check_masks_that_layers_find_on_tensors():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    cuts = {2: [["words"], ["wide"]], 3: [["words", "wide"]], 4: [["words", "attends", "wide"]]}
    more = {"attended": [["sum"]] if comm.size == 2 else []}
    return max(
        equal(
            compiled(build, sgd, loss=loss),
            sentences(),
            [{"cut": cut, "microbatches": 3} for cut in [*cuts[comm.size], *more.get(build.__name__, [])]],
            batch=16,
            epochs=1,
            validates=True,
        )
        for build in (attended, grouped)
    )


def check_losses_divided_by_weights():
    x, y = classes()
    weights = generator().uniform(0, 2, len(x)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    make = compiled(dense_net, sgd, loss=loss, metrics=["accuracy"])
    deltas = [equal(make, (x, y, weights)), equal(make, (x, y), SOME[:1])]
    words = compiled(masked, sgd, loss=loss)
    deltas.append(equal(words, (*sentences(), np.repeat(weights[:50, None], 6, 1)), SOME[:1], batch=16))
    return max(deltas)


def check_losses_of_outputs_that_are_divided_each_by_its_own():
    losses = {
        "early": keras.losses.MeanSquaredError("mean_with_sample_weight"),
        "late": keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
    }
    weights = {name: generator().uniform(0, most, 50) for name, most in (("early", 1), ("late", 3))}
    return equal(compiled(two_by_two, sgd, loss=losses), (*tasks(), weights), batch=16)


# Weights of several stages


def check_a_tied_embedding():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    words = generator().integers(0, 20, (50, 6)), generator().integers(0, 20, (50, 6))
    return equal(compiled(tied, sgd, loss=loss, metrics=["accuracy"]), words, batch=16)


def check_a_layer_that_is_called_on_two_stages():
    x = generator().normal(size=(50, 8)).astype("float32")
    if comm.size > 3:
        return 0.0  # it has three layers
    pipeline = {"cut": ["between"]} if comm.size == 2 else {"stages": 3}
    return equal(compiled(shared_layer, adam, loss="mse"), (x, np.tanh(x[:, :2])), [pipeline], batch=16)


# Batch normalization: beside one process that runs the same micro-batches


def check_batch_normalization_is_that_of_one_process_with_the_same_micro_batches():
    return max(normalizes({"stages": comm.size, "microbatches": 4, "schedule": schedule}) for schedule in SCHEDULES)


def normalizes(pipeline, options=None):
    """Train a net with batch normalization; return the largest difference of a weight or moving statistic."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    make = compiled(normalized, sgd, loss=loss)
    x, y = generator().normal(size=(50, 8, 8, 1)).astype("float32"), generator().integers(0, 10, 50)
    parallel = easyscale.parallel.Pipeline(**pipeline)
    distribute = easyscale.callbacks.Distribute(**{"exchange": "ring", **(options or {})}, model_parallel=parallel)
    mine, local = easyscale.shard(x, y), easyscale.local_batch(16)
    keras.utils.set_random_seed(1)
    model, reference = make(), None
    model.fit(*mine, batch_size=local, epochs=2, shuffle=False, verbose=0, callbacks=[distribute])
    keras.utils.set_random_seed(1)
    reference = make()
    for start in [*range(0, 50, 16)] * 2:
        batch = x[start : start + 16], y[start : start + 16]
        step_in_micro_batches(reference, batch, comm.size // parallel.stages, parallel.microbatches)
    delta = largest_difference(model, reference)
    assert delta <= 1e-5, f"differs from one process with the same micro-batches by {delta}"
    return delta


def step_in_micro_batches(model, batch, pipelines, microbatches):
    """Make a step as pipelines do, on one process: the moving statistics are the mean of what each has made of them."""
    fixed = model.non_trainable_variables
    before, moved, gradients = [np.array(one) for one in fixed], [], [0.0] * len(model.trainable_variables)
    for number in range(pipelines):
        for variable, value in zip(fixed, before, strict=True):
            variable.assign(value)
        x, y = (one[number::pipelines] for one in batch)
        ends = np.cumsum(sizes_of(len(x), microbatches))[:-1]
        for part, labels in zip(np.split(x, ends), np.split(y, ends), strict=True):
            with tf.GradientTape() as tape:
                loss = model.compute_loss(y=labels, y_pred=model(part, training=True)) * (len(part) / len(batch[0]))
            found = tape.gradient(loss, [one.value for one in model.trainable_variables])
            gradients = [total + gradient for total, gradient in zip(gradients, found, strict=True)]
        moved.append((len(x), [np.array(one) for one in fixed]))
    model.optimizer.apply(gradients, model.trainable_variables)
    for index, variable in enumerate(fixed):
        variable.assign(sum(count * values[index] for count, values in moved) / len(batch[0]))
