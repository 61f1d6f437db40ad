"""Workers step alone, and mix their weights in pairs, which change each time."""

from typing import Any

from easyscale.step.gradients import Gradients
from easyscale.update.local_sgd import LocalSGD

__all__ = ["Gossip"]


class Gossip(LocalSGD):
    """Have each worker step alone, by its own gradients, and take the mean of its weights and of another worker's.

        w_r, state_r = optimizer(w_r, state_r, g_r)         `every` times, on worker r alone
        w_r = (w_r + w_s) / 2           s = (r - 2^(t mod k)) mod P, k = ceil(log2 P); t: counts these

    In turn a worker hears the one before it, the second before it, the fourth, and so on. Each sends its weights once
    and receives those of one other: of `S` bytes it sends `S`, where a ring sends `2 S (P - 1) / P` in `2 (P - 1)`
    messages that wait for each other. There is no meeting of all: a worker that is slow for a while is waited for by
    one worker at first, and by all after `k` steps. As many hear of a worker as are heard by it, so no weight of a
    worker counts more than another's, and the weights of push-sum are all 1.

    With two workers and `every=1` both have the same weights after each step. With more they differ, the less the
    smaller the learning rate is: it is another training than that of one process, see docs/local_sgd.md. A worker
    whose data have ended mixes on until those of all have.

    At the end of each epoch all workers take the mean of all weights, so that its validation, its callbacks and their
    files have the same on all. Within an epoch `model.save`, `evaluate` and `predict` see those of the last one's end.

    With one worker the optimizer is called as it is. In a loop of your own, without `fit()`, each step exchanges.

    Args:
        every: Int. A worker mixes its weights after so many steps. Defaults to `1`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> distribute = easyscale.callbacks.Distribute(update=easyscale.update.Gossip())

    Reference: Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning", 2019,
    arXiv:1811.10792; with the exponential graph of which each worker has one neighbour at a time.
    """

    name = "gossip"
    in_pairs = True

    def __init__(self, every: int = 1):
        super().__init__(every)

    def check_job(self, gradients: Gradients) -> None:
        super().check_job(gradients)
        if gradients.sums is not None:
            raise ValueError(
                "weights that are mixed in pairs travel as they are. Received: update='gossip' and `compression`. "
                "Leave one of them out"
            )

    def get_config(self) -> dict[str, Any]:
        return {"every": self.every}

    def __repr__(self) -> str:
        return f"Gossip(every={self.every})"
