"""Whose step is being traced: what losses, metrics and layers need to know, and cannot be given as an argument."""

import contextlib
import threading
from collections.abc import Iterator

import keras

from easyscale.step.whole_batch import WholeBatch

__all__ = ["counts_elements", "samples_of_step", "step_of", "workers_of_graph", "workers_of_step"]


class _Step:
    """A step of `workers`, the `WholeBatch` of an optimizer; its graph, and what is known in it."""

    def __init__(self, workers: WholeBatch, counts_elements: bool):
        self.workers, self.graph, self.counts_elements = workers, workers.graph(), counts_elements
        self.samples: tuple | None = None


_inside = threading.local()  # each thread traces a step of its own


@contextlib.contextmanager
def step_of(workers: WholeBatch, counts_elements: bool = False) -> Iterator[None]:
    """Inside, what is called belongs to a step of `workers`. Their `context` has the number of its samples.

    Args:
        workers: The `WholeBatch`.
        counts_elements: Bool. Whether a loss in this step may be averaged over a subset of the elements. Workers then
            add up their numbers of elements. Defaults to `False`: the loss is weighted by the number of samples.
    """
    before, _inside.step = _step(), _Step(workers, counts_elements)
    try:
        yield
    finally:
        _inside.step = before


def _step() -> _Step | None:
    return getattr(_inside, "step", None)


def workers_of_step() -> WholeBatch | None:
    """Return the workers whose step this is, or `None` outside of one."""
    step = _step()
    return None if step is None else step.workers


def counts_elements() -> bool:
    """Return whether workers have to count the elements of which a loss of this step is a mean."""
    step = _step()
    return step is not None and step.counts_elements


def workers_of_graph() -> WholeBatch | None:
    """Return the workers whose step this is; `None` also in a graph of its own inside of it, such as a loop's."""
    step = _step()
    return None if step is None or step.workers.graph() is not step.graph else step.workers


def samples_of_step() -> tuple | None:
    """Return the numbers of samples of this worker and of all workers in this step; `None` outside of one.

    All workers must call this alike. In a graph of its own inside of the step, such as a branch that perhaps not all
    workers take, the numbers are not known.
    """
    step = _step()
    if step is None or step.workers.size == 1 or workers_of_graph() is None:
        return None
    if step.samples is None:
        samples = keras.ops.reshape(keras.ops.cast(step.workers.context.weight, "float64"), (1,))
        step.samples = samples[0], step.workers.total(samples)[0]
    return step.samples
