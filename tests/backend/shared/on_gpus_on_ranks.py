"""Gradients that stay on GPUs: of real ones where the backend computes there, else of GPUs that are simulated."""

import contextlib
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import keras  # noqa: E402
from models import assert_as_one_process, classify, conv_net, dense, digits, sgd  # noqa: E402
from simulated_gpus import SimulatedMemory  # noqa: E402

import easyscale  # noqa: E402
from easyscale import backend as backends  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.exchange.cuda_ipc import CudaIpc  # noqa: E402
from easyscale.exchange.nccl import Nccl  # noqa: E402

comm = easyscale.communicator.get()
IS_REAL = backends.get().computes_on_gpus()
# NCCL takes ranks with a GPU each: of one machine with one GPU it cannot be tried.
EXCHANGES = ["cuda_ipc"] if IS_REAL else [CudaIpc(SimulatedMemory(comm.rank)), Nccl(SimulatedMemory(comm.rank, False))]
ONE = EXCHANGES[:1]  # where it does not matter which


@contextlib.contextmanager
def gpus():
    """Inside, the backend says that it computes on GPUs; yield how many arrays have gone through the CPU's memory."""
    kind = type(backends.get())
    with contextlib.nullcontext() if IS_REAL else mock.patch.object(kind, "computes_on_gpus", lambda self: True):
        yield


def train(build, update=None, exchange=None, bucket_bytes=None, count=98, **options):
    x, y = digits(count)

    def distributed():
        with gpus():
            model, history = fit(
                *easyscale.shard(x, y),
                easyscale.local_batch(24),
                callbacks=[Distribute(exchange, update=update, bucket_bytes=bucket_bytes)],
            )
        return model, history

    def fit(x, y, batch, **callbacks):
        model = build()
        return model, model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, **callbacks, **options)

    return assert_as_one_process(distributed, lambda: fit(x, y, 24))


def check_a_sharded_update_takes_the_steps_of_one_process():
    for exchange in EXCHANGES:
        train(dense(keras.optimizers.Adam), "sharded", exchange)


def check_a_replicated_update_takes_the_steps_of_one_process():
    for exchange in EXCHANGES:
        train(dense(sgd), "replicated", exchange)


def check_vectors_in_pieces():
    for exchange in ONE:
        for update in ("sharded", "replicated"):
            train(dense(keras.optimizers.Adam), update, exchange, bucket_bytes=4096)


def check_moving_averages_and_accumulation():
    def build():
        return classify(conv_net(), keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))

    for exchange in ONE:
        train(build, None, exchange)


def check_rounds_of_local_steps_of_one():
    for exchange in ONE:
        train(dense(keras.optimizers.SGD), easyscale.update.LocalSGD(every=1), exchange, count=96)


def check_gradients_do_not_pass_the_memory_of_the_cpu():
    """What is exchanged are vectors of the exchange's own memory, and NumPy's only for what decides on steps."""
    lengths = []
    for exchange in EXCHANGES:
        cls = CudaIpc if exchange == "cuda_ipc" else type(exchange)
        of_host = cls.reduce

        def reduce(self, buffer, of_host=of_host, lengths=lengths):
            lengths.append((self.on_gpus, buffer.size))
            return of_host(self, buffer)

        with mock.patch.object(cls, "reduce", reduce):
            train(dense(sgd), "sharded", exchange)
    assert (lengths or comm.size == 1) and all(is_there for is_there, _ in lengths), lengths


def check_an_exchange_of_gpus_is_refused_where_tensors_are_elsewhere():
    if IS_REAL or comm.size == 1:
        return
    model = dense(sgd)()
    x, y = easyscale.shard(*digits(24))
    for exchange in EXCHANGES:
        try:
            model.fit(x, y, batch_size=4, verbose=0, callbacks=[Distribute(exchange)])
        except ValueError as error:
            assert "needs tensors on GPUs" in str(error), error
        else:
            raise AssertionError("it was taken")
