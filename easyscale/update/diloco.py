"""An update with independent steps on each worker, and rounds in which an outer optimizer applies the changes."""

from collections.abc import Callable
from typing import Any

import keras

from easyscale.errors import is_number
from easyscale.optimizers import identifiers
from easyscale.optimizers.around_another import AroundAnother
from easyscale.step.gradients import Gradients
from easyscale.update.accumulated import unscaled
from easyscale.update.local import LocalUpdate
from easyscale.update.local_steps import LocalSteps

__all__ = ["DiLoCo"]


class DiLoCo(LocalSteps):
    """Let each worker take many steps alone, and an outer optimizer apply the mean of their changes.

        w_r, state_r = optimizer(w_r, state_r, g_r)                     `every` inner steps, on worker r alone
        d = sum_r(n_r (w - w_r)) / sum_r(n_r)                           a round; n_r: its samples since the last one
        w, state = outer_optimizer(w, state, d),  w_r = w               the outer step

    Nothing is sent between rounds. A round sends as much as a step with an exchange of gradients, so `every=100` sends
    a hundredth; with `compression` less. The outer optimizer's state is at the owners of the weights, as with
    `update="sharded"`, or on all workers if it cannot be divided, or with compression. Each worker has a copy of the
    weights of the last round, and its own state of the inner optimizer.

    With `fragments` the weights take turns: after every `every / fragments` steps there is a round of another part of
    them, all parts being of similar size. The total sent is the same, but each round sends only a part.

    With `overlap` workers do not wait for a round: their changes are sent during that many further steps. Then comes
    the outer step, and weights become the mean, weighted by `mixing`, of its result and the worker's own weights:

        d = sum_r(n_r (w - w_r)) / sum_r(n_r)                           travels during `overlap` inner steps
        w, state = outer_optimizer(w, state, d),  w_r = m w_r + (1 - m) w                   m: `mixing`

    The outer optimizer's state is then on all workers.

    A round of all weights also ends each epoch, so that validation, callbacks and their files have the same weights on
    all workers. So an epoch should be a multiple of `every`, in particular with fragments, or much longer. The outer
    momentum moves the weights as far after a short round as after a long one. Between rounds `model.save`, `evaluate`
    and `predict` see each weight as of its last round.

    With one worker the inner optimizer is called directly, without outer steps. In a custom loop, without `fit()`, each
    step exchanges gradients.

    Args:
        every: Int. Inner steps between rounds. Defaults to `100`; the paper has 500.
        outer_optimizer: A Keras optimizer that is not used elsewhere, or its name. Defaults to `None`: SGD with a rate
            of 0.7 and a Nesterov momentum of 0.9, the best in the paper.
        start_step: Int. Number of initial steps with an exchange of gradients in each. Optimizer steps of earlier
            `fit()`s count. Defaults to `0`.
        fragments: Int. Number of parts in which weights take turns; it must divide `every`, and is limited to the
            number of weights. Defaults to `1`: all weights in one round.
        overlap: Int, less than `every / fragments`. Number of inner steps during a round. Defaults to `0`: workers wait
            for the end of a round.
        mixing: Float, 0 to 1. The fraction kept of a worker's own weights at the end of such a round: 0 discards its
            steps during the round, 1 the others' changes. Defaults to `0.5`.

    Raises:
        TypeError: If `outer_optimizer` is not an optimizer.
        ValueError: If an argument is out of its range, or the outer optimizer is in use elsewhere.

    Example:

    >>> outer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    >>> update = easyscale.update.DiLoCo(every=100, outer_optimizer=outer)
    >>> distribute = easyscale.callbacks.Distribute("ring", update=update)

    Reference: Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023,
    arXiv:2311.08105; of fragments Douillard et al., "Streaming DiLoCo with overlapping communication", 2025,
    arXiv:2501.18512.
    """

    name = "diloco"

    def __init__(
        self,
        every: int = 100,
        outer_optimizer: keras.optimizers.Optimizer | str | dict | None = None,
        start_step: int = 0,
        fragments: int = 1,
        overlap: int = 0,
        mixing: float = 0.5,
    ):
        super().__init__(every, start_step)
        if not is_number(fragments, 1, whole=True) or isinstance(fragments, bool) or self.every % int(fragments):
            raise ValueError(
                "`fragments` must be an integer of 1 or more of which `every` is a multiple. Received: "
                f"fragments={fragments!r}, every={self.every}. Use such as DiLoCo(every=100, fragments=4)"
            )
        self.fragments = int(fragments)
        between = self.every // self.fragments
        if not is_number(overlap, 0, whole=True) or isinstance(overlap, bool) or overlap >= between:
            raise ValueError(
                f"`overlap` must be an integer from 0 to {between - 1}, as rounds are {between} steps apart. Received: "
                f"overlap={overlap!r}, every={self.every}, fragments={self.fragments}. Use a smaller one"
            )
        if not is_number(mixing, 0) or isinstance(mixing, bool) or mixing > 1:
            raise ValueError(f"`mixing` must be a number from 0 to 1. Received: mixing={mixing!r}. Use such as 0.5")
        self.overlap, self.mixing = int(overlap), float(mixing)
        if outer_optimizer is None:
            outer_optimizer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        self.outer_optimizer = identifiers.get(outer_optimizer, "outer_optimizer")
        self._check(self.outer_optimizer)

    @staticmethod
    def _check(outer: keras.optimizers.Optimizer) -> None:
        for is_so, received in (
            (outer.built, "one that has been used already, as by a model that it was compiled into"),
            (isinstance(outer, AroundAnother | keras.optimizers.LossScaleOptimizer), f"a {type(outer).__name__}"),
            (bool(getattr(outer, "gradient_accumulation_steps", None)), "one that accumulates gradients"),
            (bool(getattr(outer, "use_ema", False)), "one that keeps moving averages of weights"),
        ):
            if is_so:
                raise ValueError(
                    f"`outer_optimizer` must be a plain optimizer of its own. Received: {received}. Use "
                    "`keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)`"
                )

    def make_outer_optimizer(self) -> keras.optimizers.Optimizer:
        self._check(self.outer_optimizer)
        return type(self.outer_optimizer).from_config(self.outer_optimizer.get_config())

    def __call__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], Gradients],
    ) -> LocalUpdate:
        return LocalUpdate(optimizer, variables, connect, self)

    def why_not(self, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> str | None:
        if unscaled(optimizer) is self.outer_optimizer:
            return "it is the outer optimizer as well, which has to be another one"
        return super().why_not(optimizer, variables)

    def get_config(self) -> dict[str, Any]:
        outer = keras.saving.serialize_keras_object(self.outer_optimizer)
        outer["config"] = {name: value for name, value in outer["config"].items() if name != "name"}
        own = {"fragments": self.fragments, "overlap": self.overlap, "mixing": self.mixing}
        return {**super().get_config(), "outer_optimizer": outer, **own}

    def __repr__(self) -> str:
        outer = self.get_config()["outer_optimizer"]
        arguments = ", ".join(f"{name}={value!r}" for name, value in outer["config"].items() if value)
        made_by = f"outer_optimizer={outer['class_name']}({arguments})"
        more = f", fragments={self.fragments}" if self.fragments > 1 else ""
        more += f", overlap={self.overlap}, mixing={self.mixing}" if self.overlap else ""
        return f"DiLoCo(every={self.every}, {made_by}, start_step={self.start_step}{more})"
