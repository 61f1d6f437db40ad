"""An update with independent steps on each worker, which mixes weights in changing pairs."""

from typing import Any

from easyscale.step.gradients import Gradients
from easyscale.update.local_sgd import LocalSGD

__all__ = ["Gossip"]


class Gossip(LocalSGD):
    """Let each worker step alone, with its own gradients, then average its weights with another worker's.

        w_r, state_r = optimizer(w_r, state_r, g_r)         `every` times, on worker r alone
        w_r = (w_r + w_s) / 2           s = (r - 2^(t mod k)) mod P, k = ceil(log2 P); t: counts these

    In turn a worker receives from the worker before it, from the second before it, the fourth, and so on. Each sends
    its weights once and receives those of one other: of `S` bytes it sends `S`, where a ring sends `2 S (P - 1) / P` in
    `2 (P - 1)` dependent messages. Workers never synchronize all at once: a temporarily slow worker delays one other at
    first, and all after `k` steps. Each worker sends as often as it receives, so the weights of all count the same,
    and the weights of push-sum are all 1.

    With two workers and `every=1` both have the same weights after each step. With more workers they differ, the less
    the smaller the learning rate: training is not equivalent to that of one process, see docs/slow_networks.md. A
    worker at the end of its data keeps mixing until all are.

    At the end of each epoch the weights of all workers are averaged, so that validation, callbacks and their files have
    the same weights on all. Within an epoch `model.save`, `evaluate` and `predict` see the weights of the last epoch's
    end.

    With one worker the optimizer is called directly. In a custom loop, without `fit()`, each step exchanges gradients.

    Args:
        every: Int. Number of steps after which a worker mixes its weights. Defaults to `1`.

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
