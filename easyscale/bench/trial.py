"""The ranks' side of `easyscale doctor`: they measure what is between them, and train a model of a few weights.

The chief writes a JSON object a line to stdout:

    {"hosts": [...], "mpi": ...}     the host of each rank, once all ranks have met
    {"clocks": [...]}                by how many seconds each rank's clock is ahead of the first one's
    {"links": [...]}                 of each two ranks: the two, latency, bandwidth
    {"trained": ...}                 the backend, when a `fit()` has made some steps

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
    """Do so, with all other ranks."""
    communicator = communicators.get()
    say = teller(communicator)
    say({"hosts": communicator.all_gather_object(communicator.host), "mpi": communicator.library})
    say({"clocks": clocks.offsets(communicator)})
    say({"links": [[*link.ranks, link.latency, link.bandwidth] for link in links.measure(communicator)]})
    say({"trained": _train(communicator.rank)})
    communicator.barrier()


def _train(rank: int) -> str:
    """Train for two steps with all other ranks; return the backend."""
    import keras  # it may be missing, or broken: what is between ranks is told before

    from easyscale.callbacks.distribute import Distribute

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(rank).normal(size=(_SAMPLES, 4)).astype("float32")
    model.fit(x, x.sum(axis=1), batch_size=_SAMPLES // 2, verbose=0, callbacks=[Distribute()])
    return keras.backend.backend()


if __name__ == "__main__":
    main()
