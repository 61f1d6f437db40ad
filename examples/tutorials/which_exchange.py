# %% [markdown]
# # Which exchange, watched
#
# An exchange brings the gradients of all ranks together, and the result back to all. Here two of them, the ring and
# the tree, are watched while they do it: who sends what to whom, and in which order. Then a picture says which one is
# faster when.
#
# It takes seconds and needs neither MPI nor TensorFlow: ranks are threads of this process. The exchanges are the same
# that train models.

# %%
import collections
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import easyscale
from easyscale.communicator import Communicator, Request

RANKS = 8
LENGTH = 8_000  # numbers in the vector, of four bytes each

# %% [markdown]
# ## Sum a vector over eight ranks
#
# `run_ranks` calls a function on each rank. `allreduce` overwrites the vector with its sum over all of them: rank `r`
# brings the number `r`, so each gets 0 + 1 + ... + 7.


# %%
def sum_up(comm):
    vector = np.full(LENGTH, comm.rank, "float32")
    easyscale.exchange.get("ring", comm).allreduce(vector)
    return vector


vectors = easyscale.communicator.run_ranks(RANKS, sum_up)
print("each number of each rank:", {float(number) for vector in vectors for number in vector})

# %% [markdown]
# ```output
# each number of each rank: {28.0}
# ```
#
# ## Watch the messages
#
# An exchange sends by a communicator, and knows nothing else of the ranks. So a communicator of our own that notes
# each message sees everything. It also has a clock: a message takes one step, and a rank sends one at a time and
# receives one at a time, as over one network card.


# %%
class Message(NamedTuple):
    source: int
    to: int
    nbytes: int
    left: int  # the step in which it was sent
    came: int  # the step in which it was received
    movement: str


class Watched(Communicator):
    """Sends by another communicator, and notes each message that comes."""

    def __init__(self, comm, clocks, messages):
        super().__init__()
        self.rank, self.size = comm.rank, comm.size
        self.comm, self.clocks, self.messages = comm, clocks, messages
        self.sent_at = self.received_at = 0
        self.movement = "reduce"

    def isend(self, buffer, to):
        self.sent_at = max(self.sent_at, self.received_at) + 1
        self.clocks[self.rank, to].append(self.sent_at)
        return self.comm.isend(buffer, to)

    def ireceive(self, buffer, source):
        return Arriving(self, self.comm.ireceive(buffer, source), source, buffer.nbytes)


class Arriving(Request):
    def __init__(self, watched, request, source, nbytes):
        self.watched, self.request, self.source, self.nbytes = watched, request, source, nbytes

    def wait(self):
        self.request.wait()
        watched = self.watched
        left = watched.clocks[self.source, watched.rank].popleft()
        watched.received_at = max(watched.received_at + 1, left)
        came = watched.received_at
        watched.messages.append(Message(self.source, watched.rank, self.nbytes, left, came, watched.movement))


def watch(name):
    """Return all messages of an allreduce by this exchange."""
    clocks, messages = collections.defaultdict(collections.deque), []

    def on_rank(comm):
        watched = Watched(comm, clocks, messages)
        exchange = easyscale.exchange.get(name, watched)
        vector = np.ones(LENGTH, "float32")
        exchange.reduce(vector)  # the sum of each range comes to the rank that owns it
        watched.movement = "gather"
        exchange.gather(vector)  # and from there to all

    easyscale.communicator.run_ranks(RANKS, on_rank)
    return messages


# %% [markdown]
# An `allreduce` is two movements: `reduce` brings the sum of each range to the rank that owns the range, `gather`
# brings it back to all. In the ring each rank owns an eighth; in the tree rank 0 owns everything.

# %%
watched = {name: watch(name) for name in ("ring", "tree")}
for name, messages in watched.items():
    sent = collections.Counter()
    for message in messages:
        sent[message.source] += message.nbytes
    steps = max(message.came for message in messages)
    print(f"{name}: {len(messages)} messages in {steps} steps; the busiest rank sends {max(sent.values()):,} bytes")

# %% [markdown]
# ```output
# ring: 112 messages in 14 steps; the busiest rank sends 56,000 bytes
# tree: 14 messages in 6 steps; the busiest rank sends 96,000 bytes
# ```
#
# That is what the classes say of themselves: `2 (P - 1)` steps and `2 S (P - 1) / P` bytes for the ring, `2 log2 P`
# steps and `S log2 P` bytes for the tree, with `P` ranks and a vector of `S` bytes.

# %%
for name in watched:
    print(name, easyscale.exchange.get(name).cost(RANKS, LENGTH * 4))

# %% [markdown]
# ```output
# ring Cost(steps=14, messages=14, bytes=56000)
# tree Cost(steps=6, messages=3, bytes=96000)
# ```
#
# ## Draw them
#
# Time goes to the right, one line a rank, and an arrow is a message: the thicker, the more bytes.

# %%
COLORS = {"reduce": "#3f51b5", "gather": "#b3541e"}
figure, panels = plt.subplots(2, 1, figsize=(8, 7.2), layout="constrained")
for axes, (name, messages) in zip(panels, watched.items(), strict=True):
    steps = max(message.came for message in messages)
    axes.hlines(range(RANKS), 0, steps, color="#c3ccdb", linewidth=1)
    for message in messages:
        style = {"arrowstyle": "-|>", "color": COLORS[message.movement], "lw": 0.8 + 2 * message.nbytes / (LENGTH * 4)}
        axes.annotate("", (message.came, message.to), (message.left - 1, message.source), arrowprops=style)
    axes.set(title=f"{name}: {len(messages)} messages in {steps} steps", ylabel="rank", xlim=(0, 14.2))
    axes.set(yticks=range(RANKS), xticks=range(0, 15, 2), ylim=(RANKS - 0.5, -0.5))
panels[0].plot([], color=COLORS["reduce"], label="reduce")
panels[0].plot([], color=COLORS["gather"], label="gather")
panels[0].legend(loc="upper left", bbox_to_anchor=(1, 1))
panels[1].set_xlabel("step")
figure.savefig("which_exchange.svg")

# %% [markdown]
# In the ring every rank sends in every step, an eighth of the vector each time. No link waits, and no exchange that
# sends can do with fewer bytes. In the tree most ranks wait most of the time, but it is soon over.
#
# ## So which one?
#
# Each step costs the network's latency, and each byte its bandwidth:
#
#     time = steps * latency + bytes / bandwidth
#
# Say 20 microseconds and 10 Gbit/s, a usual Ethernet:

# %%
LATENCY, BANDWIDTH = 20e-6, 10e9 / 8  # seconds; bytes a second


def seconds(name, nbytes):
    cost = easyscale.exchange.get(name).cost(RANKS, nbytes)
    return cost.steps * LATENCY + cost.bytes / BANDWIDTH


sizes = np.logspace(3, 8, 200)
crossing = next(size for size in sizes if seconds("ring", int(size)) < seconds("tree", int(size)))
print(f"from about {crossing / 1000:.0f} kB on the ring is faster")

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for name, color in (("ring", "#3f51b5"), ("tree", "#b3541e")):
    axes.loglog(sizes / 1000, [1000 * seconds(name, int(size)) for size in sizes], color=color, label=name)
axes.axvline(crossing / 1000, color="#c3ccdb", linestyle="--")
axes.set(xlabel="vector, kB", ylabel="time, ms", title=f"{RANKS} ranks, 20 µs, 10 Gbit/s")
axes.legend()
figure.savefig("which_exchange_when.svg")

# %% [markdown]
# ```output
# from about 163 kB on the ring is faster
# ```
#
# A model of a million weights has gradients of 4 MB: the ring. One of ten thousand, 40 kB: the tree.
#
# On one machine neither is best. There `shared_memory` sends nothing: ranks read each other's memory. `hierarchical`
# has that inside each machine, and a ring or a tree between machines. By default EasyScale measures those that suit,
# on your network and with the size of your model's gradients, and says what it has chosen:
# [which exchange is taken](../../docs/how_it_works.md#which-exchange-is-taken). To see your own:
#
# ```text
# easyscale bench exchange -n 4 --sizes 4KB,1MB,100MB --plot sums.png
# ```
#
# Next: [write an exchange](write_an_exchange.py) that has the steps of the tree and the bytes of the ring.
