# %% [markdown]
# # Write an exchange
#
# An exchange of your own is a class with two methods. Here we write a simple one, the star, see what it costs, and
# then a good one: the butterfly, which has the steps of the tree and the bytes of the ring. At the end it trains a
# model.

# %%
import matplotlib.pyplot as plt
import numpy as np

import easyscale
from easyscale.exchange import Cost, Exchange

# %% [markdown]
# ## The star
#
# Everybody sends everything to rank 0, which adds it up and sends the sum to everyone:
#
# ```text
#       1   2
#        \ /
#     4 - 0 - 3      each edge carries the whole vector, once in and once out
# ```
#
# Three things have to be said: who owns which part of the vector (`owned`), how sums come to their owners
# (`_reduce`), and how the owners' parts come to all (`_gather`). `self.communicator` has the rank, the number of
# ranks, and messages.


# %%
class Star(Exchange):
    """Send everything to rank 0, which adds it up and sends the sum to everyone."""

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


# %% [markdown]
# ## Is it right, and what does it send?
#
# Ranks as threads of this process are enough to see both. If one rank waited for a message that never comes, this
# would end with an error that says who waits for whom. The lengths are chosen to be awkward: nothing, one number, one
# that cannot be divided.


# %%
def check(exchange, sizes):
    """Compare the sums with what they must be."""
    for size in sizes:
        for length in (0, 1, 7, 1000):

            def on_rank(comm, length=length):
                vector = np.arange(length, dtype="float64") + comm.rank
                easyscale.exchange.get(exchange, comm).allreduce(vector)
                return vector

            expected = size * np.arange(length) + size * (size - 1) / 2
            for vector in easyscale.communicator.run_ranks(size, on_rank):
                np.testing.assert_array_equal(vector, expected)
    return f"{exchange.__name__}: right on {', '.join(map(str, sizes))} ranks"


def sent(exchange, size, length=16_000):
    """Return how many bytes the busiest rank sends for a vector of float32, counted."""

    def on_rank(comm):
        easyscale.exchange.get(exchange, comm).allreduce(np.ones(length, "float32"))
        return comm.sent.bytes

    return max(easyscale.communicator.run_ranks(size, on_rank))


print(check(Star, [2, 3, 4, 5, 8]))
print(f"the busiest of 8 ranks sends {sent(Star, 8):,} bytes; cost says {Star.cost(8, 64_000).bytes:,}")

# %% [markdown]
# ```output
# Star: right on 2, 3, 4, 5, 8 ranks
# the busiest of 8 ranks sends 448,000 bytes; cost says 448,000
# ```
#
# Right, and slow: rank 0 sends the vector to each of the others, while a rank of the ring sends less than two
# vectors, however many ranks there are.
#
# ## The butterfly
#
# With 8 ranks: in the first step rank 0 and rank 4 meet. Each gives the other the half that it does not keep: rank 0
# keeps the first half of the vector, rank 4 the second. Both add what they get. Then rank 0 meets rank 2 with a
# quarter, and rank 1 with an eighth: now it has the sum of its eighth over all 8 ranks. On the way back the same
# pairs meet in the opposite order.
#
# ```text
# step 1   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7      half of the vector
# step 2   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7      a quarter
# step 3   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7      an eighth
# ```
#
# That is `2 log2 P` steps, as the tree has, and `2 S (P - 1) / P` bytes, as the ring has. It needs a number of ranks
# that is a power of two: recursive halving and doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective
# communication operations in MPICH", 2005). Rank `r` owns the `r`-th `1 / P`, which is what the base class says, so
# there is no `owned` to write.


# %%
class Butterfly(Exchange):
    """Halve what is summed up in each step: with a partner far away first, with the neighbour at last."""

    @staticmethod
    def cost(size, nbytes):
        steps = 2 * (size.bit_length() - 1)
        return Cost(steps=steps, messages=steps, bytes=2 * nbytes * (size - 1) // size)

    def connect(self, communicator):
        if communicator.size & (communicator.size - 1):
            raise ValueError(
                f"`Butterfly` needs a power of two of ranks. Received: {communicator.size} ranks. Use 'ring'"
            )
        return super().connect(communicator)

    def _reduce(self, buffer):
        comm, block = self.communicator, self.communicator.size
        while block > 1:
            block //= 2
            partner = comm.rank ^ block
            kept, given = self._block(buffer, comm.rank, block), self._block(buffer, partner, block)
            sending = comm.isend(given, to=partner)
            incoming = np.empty_like(kept)
            comm.receive(incoming, source=partner)
            sending.wait()
            kept += incoming

    def _gather(self, buffer):
        comm, block = self.communicator, 1
        while block < comm.size:
            partner = comm.rank ^ block
            sending = comm.isend(self._block(buffer, comm.rank, block), to=partner)
            comm.receive(self._block(buffer, partner, block), source=partner)
            sending.wait()
            block *= 2

    def _block(self, buffer, rank, block):
        """The part of the vector that belongs to the `block` ranks among which `rank` is."""
        first = rank // block * block
        size = self.communicator.size
        return buffer[buffer.size * first // size : buffer.size * (first + block) // size]


print(check(Butterfly, [2, 4, 8, 16]))
print(f"the busiest of 8 ranks sends {sent(Butterfly, 8):,} bytes; the ring's sends {sent('ring', 8):,}")

# %% [markdown]
# ```output
# Butterfly: right on 2, 4, 8, 16 ranks
# the busiest of 8 ranks sends 112,000 bytes; the ring's sends 112,000
# ```
#
# All ranks must end with the same bits, or their weights would drift apart. Here they do: each range is summed up by
# one rank, and the others get copies.
#
# ## Beside the others

# %%
sizes = [2, 4, 8, 16]
exchanges = {"star": Star, "ring": "ring", "tree": "tree", "butterfly": Butterfly}
colors = dict(zip(exchanges, ["#8e3b8e", "#3f51b5", "#b3541e", "#2e7d5b"], strict=True))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for name, exchange in exchanges.items():
    steps = [easyscale.exchange.get(exchange).cost(size, 64_000).steps for size in sizes]
    vectors = [sent(exchange, size) / 64_000 for size in sizes]
    dashes = "--" if name == "butterfly" else "-"
    left.plot(sizes, steps, dashes, marker="o", color=colors[name], label=name)
    right.plot(sizes, vectors, dashes, marker="o", color=colors[name], label=name)
left.set(xlabel="ranks", ylabel="steps", title="steps that follow one another")
right.set(xlabel="ranks", ylabel="vectors", title="sent by the busiest rank")
for axes in (left, right):
    axes.set(xscale="log", xticks=sizes, xticklabels=sizes)
    axes.minorticks_off()
left.legend()
figure.savefig("write_an_exchange.svg")

# %% [markdown]
# ## Train with it
#
# An instance is what `Distribute` takes, beside a name. Here two processes train the same model by the butterfly and
# by the ring, and the weights are compared.


# %%
def compare():
    import keras

    def train(exchange):
        keras.utils.set_random_seed(0)
        x = np.random.default_rng(0).normal(size=(960, 8)).astype("float32")
        y = x.sum(axis=1, keepdims=True)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        x, y = easyscale.shard(x, y)
        distribute = easyscale.callbacks.Distribute(exchange)
        model.fit(x, y, easyscale.local_batch(96), epochs=3, shuffle=False, verbose=0, callbacks=[distribute])
        return np.concatenate([weight.reshape(-1) for weight in model.get_weights()])

    return float(np.abs(train(Butterfly()) - train("ring")).max())


difference = easyscale.run(compare, n=2)
print("weights by butterfly and by ring are the same to rounding:", difference < 1e-5)

# %% [markdown]
# ```output
# weights by butterfly and by ring are the same to rounding: True
# ```
#
# In a script of your own that is all. To add an exchange to EasyScale, so that `--exchange`, `easyscale bench` and
# all tests of exchanges know it, put it into a file of its own:
# [CONTRIBUTING.md](../../CONTRIBUTING.md#add-an-exchange) says how.
