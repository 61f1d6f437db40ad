"""Rank side of `easyscale doctor`: measures the links between ranks and trains a tiny model.

The chief writes JSON lines to stdout:

    {"hosts": [...], "mpi": ...}     the host of each rank, after all ranks have connected
    {"clocks": [...]}                seconds by which each rank's clock is ahead of rank 0's
    {"links": [...]}                 for each pair of ranks: both ranks, latency, bandwidth
    {"trained": ...}                 the backend, after a `fit()` of a few steps

Every rank runs `main`.
"""

import numpy as np

from easyscale import communicator as communicators
from easyscale.bench import links
from easyscale.bench.telling import teller
from easyscale.communicator import clocks

__all__ = ["main"]

_SAMPLES = 8  # of each rank, in two steps


def main() -> None:
    """Run all measurements, together with the other ranks."""
    communicator = communicators.get()
    say = teller(communicator)
    say({"hosts": communicator.all_gather_object(communicator.host), "mpi": communicator.library})
    say({"clocks": clocks.offsets(communicator)})
    say({"links": [[*link.ranks, link.latency, link.bandwidth] for link in links.measure(communicator)]})
    say({"trained": _train(communicator.rank)})
    communicator.barrier()


def _train(rank: int) -> str:
    """Train for two steps with all other ranks; return the backend."""
    import keras  # late: if Keras is missing or broken, the links have been reported before

    from easyscale.callbacks.distribute import Distribute

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(rank).normal(size=(_SAMPLES, 4)).astype("float32")
    model.fit(x, x.sum(axis=1), batch_size=_SAMPLES // 2, verbose=0, callbacks=[Distribute()])
    return keras.backend.backend()


if __name__ == "__main__":
    main()
