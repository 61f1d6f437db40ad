"""What is recorded of the steps of a `fit()`: parts make up the step, who comes last is named, training is the same."""

import contextlib
import time
from itertools import groupby

import keras
import numpy as np
import tensorflow as tf
from covering import full
from models import classify, conv_net, digits

import easyscale
from easyscale import profiling
from easyscale.callbacks import Distribute
from easyscale.timeline import Part, Timeline
from easyscale.training.profile import Profile

comm = easyscale.communicator.get()
STEPS = 6
PAUSE = 0.1  # seconds that data or a callback takes on a rank: much more than a step


class Begins(keras.callbacks.Callback):
    """When steps have begun, on another clock."""

    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seconds.append(time.perf_counter())


class SlowData(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(PAUSE * (comm.rank == 1))
        part = slice(8 * index, 8 * index + 8)
        return self.x[part], self.y[part]


class SlowCallback(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE * (comm.rank == 0))


@contextlib.contextmanager
def recorded(steps=1000):
    """Yield a timeline that is on, in the place of the communicator's."""
    before, comm.timeline = comm.timeline, Timeline(is_on=True, traced=range(steps))
    try:
        yield comm.timeline
    finally:
        comm.timeline = before


def train(callbacks=(), slow=False, epochs=1, **options):
    keras.utils.set_random_seed(3)
    model = classify(conv_net(), "adam")
    x, y = easyscale.shard(*digits(8 * comm.size * STEPS))
    data = {"x": SlowData(x, y)} if slow else {"x": x, "y": y, "batch_size": 8}
    model.fit(**data, epochs=epochs, verbose=0, shuffle=False, callbacks=[Distribute(**options), *callbacks])
    return model


@full
def check_parts_make_up_the_steps_and_all_are_there():
    begins = Begins()
    with recorded() as timeline:
        train([begins], epochs=2, update="sharded")
    parts = {Part.DATA, Part.PASSES, Part.WAIT, Part.PACK, Part.EXCHANGE, Part.UPDATE, Part.GATHER, Part.CALLBACKS}
    assert parts <= {name for name, nanoseconds in timeline.times.items() if nanoseconds > 0}
    by_number = {number: [span.name for span in timeline.spans if span.step == number] for number in timeline.waits}
    assert timeline.steps == 2 * STEPS - 1, by_number  # the first one is traced
    # By another clock, from the begin of each step of the second epoch to that of the next.
    spans = [span for span in timeline.spans if not span.thread and STEPS <= span.step < 2 * STEPS - 1]
    by_step = [sum(span.end - span.begin for span in own) for _, own in groupby(spans, lambda span: span.step)]
    elapsed = begins.seconds[-1] - begins.seconds[STEPS]
    assert len(by_step) == STEPS - 1 and abs(1e-9 * sum(by_step) / elapsed - 1) < 0.05
    every_span = [span for span in timeline.spans if span.step]
    assert sum(timeline.times.values()) == sum(span.end - span.begin for span in every_span)


def check_it_says_whose_data_or_callback_the_others_wait_for():
    slow = (1, f"{Part.DATA} takes", {"slow": True}), (0, f"{Part.CALLBACKS} take", {"callbacks": [SlowCallback()]})
    for rank, takes, options in slow:
        with recorded():
            train(**options, epochs=3)  # Keras loads data beside a step, and all of an epoch while it traces
            ranks = profiling.gather(comm, [0.0] * comm.size, sends_spans=True)
        if comm.rank == 0:
            advice = profiling.advise(ranks)
            assert f"of a step waits for rank {rank} on {comm.host}, whose {takes} " in advice, advice
            part = takes.split()[0]
            assert ranks[rank].parts[part] > 2 * ranks[1 - rank].parts[part]
            waited = profiling.trace_file.events(ranks)
            assert {event["args"].get("for") for event in waited if event["name"] == "wait"} >= {f"rank {rank}"}


def check_training_is_the_same_while_parts_are_recorded():
    for options in ({"update": "sharded"}, {"update": "replicated"}, {"exchange": "ring", "bucket_bytes": 4096}):
        plain = train(**options).get_weights()
        with recorded() as timeline:
            found = train(**options).get_weights()
        assert all(np.array_equal(one, other) for one, other in zip(plain, found, strict=True))
        beside = {span.name for span in timeline.spans if span.thread == "easyscale-exchange"}
        assert beside == ({"wait", "exchange", "gather"} if "bucket_bytes" in options else set())


@full
def check_data_that_ends_unseen_and_steps_in_one_call_are_counted():
    x, y = easyscale.shard(*digits(8 * comm.size * STEPS))
    for steps, count in ((1, 2 * STEPS - 1), (2, STEPS - 1)):
        model = classify(conv_net(), "adam")
        model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=steps)

        def samples():
            for start in range(0, 8 * STEPS, 8):
                yield x[start : start + 8], y[start : start + 8]

        specs = (tf.TensorSpec((None, *x.shape[1:]), tf.float32), tf.TensorSpec((None, *y.shape[1:]), y.dtype))
        with recorded() as timeline:
            model.fit(
                tf.data.Dataset.from_generator(samples, output_signature=specs),
                epochs=2, verbose=0, callbacks=[Distribute()],
            )  # fmt: skip
        assert timeline.steps == count, timeline.steps
        assert {span.step for span in timeline.spans} == set(range(count + 1))


@full
def check_steps_of_one_number_are_the_same_on_ranks_of_which_some_have_fewer():
    x, y = easyscale.shard(*digits(8 * comm.size * STEPS))
    count = 8 * (STEPS - comm.rank)
    with recorded() as timeline:
        model = classify(conv_net(), "sgd")
        model.fit(x[:count], y[:count], batch_size=8, epochs=3, verbose=0, callbacks=[Distribute()])
    first_steps = {STEPS * epoch for epoch in range(3)}
    assert first_steps <= {span.step for span in timeline.spans}
    assert sorted(timeline.waits)[0] == 1 and len(timeline.waits) == 3 * (STEPS - comm.rank) - 1
    assert (STEPS - 1 in timeline.waits) == (comm.rank == 0)


@full
def check_without_it_nothing_is_recorded_and_no_message_is_sent():
    train()
    assert (comm.timeline.steps, comm.timeline.spans) == (0, [])
    sent = comm.sent.messages
    profile = Profile(comm)
    profile.begin()
    profile.end()
    assert comm.sent.messages == sent
