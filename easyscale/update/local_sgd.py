"""An update with independent steps on each worker, and regular averaging of the weights."""

from collections.abc import Callable

import keras

from easyscale.step.gradients import Gradients
from easyscale.update.local import LocalUpdate
from easyscale.update.local_steps import LocalSteps

__all__ = ["LocalSGD"]


class LocalSGD(LocalSteps):
    """Let each worker step alone, with its own gradients, and regularly average the weights of all.

        w_r, state_r = optimizer(w_r, state_r, g_r)                     `every` times, on worker r alone
        d = sum_r(n_r (w - w_r)) / sum_r(n_r)                           a round; n_r: its samples since the last one
        w = w - d,  w_r = w                                             the mean of all workers' weights

    Nothing is sent between rounds. A round sends as much as a step with an exchange of gradients, so `every=16` sends a
    sixteenth. Each worker has a copy of the weights of the last round, and its own state of the optimizer. With
    `every=1` and SGD, training is equivalent to that of one process; otherwise it is not: see docs/slow_networks.md.

    A round also ends each epoch, so that validation, callbacks and their files have the mean weights on all workers. So
    an epoch should be longer than `every`, ideally a multiple of it. Between rounds `model.save`, `evaluate` and
    `predict` see the weights of the last one.

    With one worker the optimizer is called directly. In a custom loop, without `fit()`, each step exchanges gradients.

    Args:
        every: Int. Steps between rounds. Defaults to `16`.
        start_step: Int. Number of initial steps with an exchange of gradients in each, while weights change fast.
            Optimizer steps of earlier `fit()`s count. Post-local SGD, of Lin et al. Defaults to `0`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> update = easyscale.update.LocalSGD(every=16, start_step=500)
    >>> distribute = easyscale.callbacks.Distribute("ring", update=update)

    Reference: Stich, "Local SGD converges fast and communicates little", 2019, arXiv:1805.09767; Lin, Stich, Patel and
    Jaggi, "Don't use large mini-batches, use local SGD", 2020, arXiv:1808.07217.
    """

    name = "local_sgd"

    def __init__(self, every: int = 16, start_step: int = 0):
        super().__init__(every, start_step)

    def make_outer_optimizer(self) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(1.0)

    def __call__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], Gradients],
    ) -> LocalUpdate:
        return LocalUpdate(optimizer, variables, connect, self)
