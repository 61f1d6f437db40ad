"""Error feedback: what a compression leaves out of a gradient is added to the next one."""

from typing import Any

import numpy as np

from easyscale.compression.compression import Compression, StepOfForm, SupportsReduce

__all__ = ["ErrorFeedback"]


class ErrorFeedback(Compression):
    """A compression with a residual on each rank: what has been left out of gradients so far and not yet sent.

        p = g + e                               the rank's gradient, and its residual
        e = p - what has been sent of p         stays until the next step

    So every number arrives, some of it later: the sum over all steps is off only by the last residuals, not by one per
    step. The residual is float32 and takes as much memory as the gradients. It is kept where a message is packed, which
    around a ring is at each rank: what a rank leaves out of a sum that it passes on goes into its own residual, too.
    See `Packing`.

    Residuals are part of a checkpoint: on the same number of workers training continues with the same bits; on another
    number each worker gets an equal part of the sum of all. They are not part of a model's file. A residual that is not
    finite is reported once, and stays as it was before.

    Compressions that leave out most of a gradient have error feedback of their own and need no wrapper.

    Args:
        form: `Compression`, or the name of one.

    Raises:
        ValueError: If it is `"auto"`, or an `ErrorFeedback` already.

    Example:

    >>> ErrorFeedback("int8")
    ErrorFeedback(form=Int8())

    References: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
    training of speech DNNs", 2014; Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
    schemes", 2019.
    """

    keeps_error = True

    def __init__(self, form: str | dict | Compression | type[Compression]):
        from easyscale import compression

        found = compression.given(form)
        if not isinstance(found, compression.Compression) or isinstance(found, ErrorFeedback):
            raise ValueError(f"`form` must be a form without error feedback. Received: {form=}. Use such as 'int8'")
        self.form, self.name = found, f"{found.name} with error feedback"

    @property
    def plain(self) -> Compression:
        return self.form

    def why_not(self, exchange: Any) -> str | None:
        return self.form.why_not(exchange)

    def shortens(self, shape: tuple[int, ...]) -> bool:
        return self.form.shortens(shape)

    def sum(
        self,
        exchange: SupportsReduce,
        vector: np.ndarray,
        step: StepOfForm,
        left_out: np.ndarray | None = None,
        gathers: bool = True,
    ) -> None:
        self.form.sum(exchange, vector, step, left_out, gathers)
