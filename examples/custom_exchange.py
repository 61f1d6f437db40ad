"""An exchange of your own, in your own file: pass an instance to `Distribute`.

    easyscale launch -n 3 examples/custom_exchange.py

It counts what the star sends, then trains the same model by the star and by the ring and compares their weights.
"""

import keras
import numpy as np

import easyscale
from easyscale.exchange import Cost, Exchange


class Star(Exchange):
    """Send everything to rank 0, which adds it up and sends the sum to everyone.

          1   2
           \\ /
        4 - 0 - 3      each edge carries the whole buffer of S bytes, once in and once out

    With `P` ranks it takes `2 * (P - 1)` steps, because rank 0 takes and gives one buffer after the other. Rank 0 is
    the busiest: it sends `P - 1` messages and `S * (P - 1)` bytes. Rank 0 owns everything.

    1. Rank 0 receives the buffers of ranks 1, 2, ... in this order and adds each to its own.
    2. It sends the sum to all of them.
    """

    @staticmethod
    def cost(size, nbytes):
        return Cost(steps=2 * (size - 1), messages=size - 1, bytes=nbytes * (size - 1))

    def owned(self, length):
        return slice(0, length if self.communicator.rank == 0 else 0)

    def _reduce(self, buffer):
        comm = self.communicator
        if comm.rank > 0:
            comm.send(buffer, to=0)
            return
        incoming = np.empty_like(buffer)
        for rank in range(1, comm.size):
            comm.receive(incoming, source=rank)
            buffer += incoming

    def _gather(self, buffer):
        comm = self.communicator
        if comm.rank > 0:
            comm.receive(buffer, source=0)
            return
        for request in [comm.isend(buffer, to=rank) for rank in range(1, comm.size)]:
            request.wait()


def train(exchange):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(960, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = easyscale.shard(x, y)
    batch = easyscale.local_batch(96)
    model.fit(x, y, batch, epochs=5, shuffle=False, verbose=0, callbacks=[easyscale.callbacks.Distribute(exchange)])
    return np.concatenate([weight.reshape(-1) for weight in model.get_weights()])


comm = easyscale.communicator.get()
vector = np.ones(250_000, "float32")
before = comm.sent.bytes
easyscale.exchange.get(Star, comm).allreduce(vector)
sent, cost = comm.sent.bytes - before, Star.cost(comm.size, vector.nbytes)
difference = np.abs(train(Star()) - train("ring")).max()
if easyscale.is_chief():
    print(f"to sum {vector.nbytes:,} bytes over {comm.size} ranks, rank 0 sent: {sent:,} (cost: {cost.bytes:,})")
    print(f"weights by star and by ring differ by at most: {difference:.0e}")
