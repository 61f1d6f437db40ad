"""The current step: information that losses, metrics and layers need, but cannot receive as an argument."""

import contextlib
import threading
from collections.abc import Iterator

import keras

from easyscale.step.whole_batch import WholeBatch

__all__ = ["counts_elements", "samples_of_step", "step_of", "workers_of_graph", "workers_of_step"]


class _Step:
    """A step of `workers`, the `WholeBatch` of an optimizer; its graph, and values known in it."""

    def __init__(self, workers: WholeBatch, counts_elements: bool):
        self.workers, self.graph, self.counts_elements = workers, workers.graph(), counts_elements
        self.samples: tuple | None = None


_inside = threading.local()  # each thread traces its own step


@contextlib.contextmanager
def step_of(workers: WholeBatch, counts_elements: bool = False) -> Iterator[None]:
    """Return a context in which all calls belong to a step of `workers`. Their `context` has its number of samples.

    Args:
        workers: The `WholeBatch`.
        counts_elements: Bool. Whether a loss in this step may be averaged over a subset of the elements. Workers then
            sum up their numbers of elements. Defaults to `False`: the loss is weighted by the number of samples.
    """
    before, _inside.step = _step(), _Step(workers, counts_elements)
    try:
        yield
    finally:
        _inside.step = before


def _step() -> _Step | None:
    return getattr(_inside, "step", None)


def workers_of_step() -> WholeBatch | None:
    """Return the workers of the current step, or `None` outside of one."""
    step = _step()
    return None if step is None else step.workers


def counts_elements() -> bool:
    """Return whether workers must count the elements over which a loss of this step is averaged."""
    step = _step()
    return step is not None and step.counts_elements


def workers_of_graph() -> WholeBatch | None:
    """Return the workers of the current step; `None` outside of one, or in a nested graph, such as a loop's."""
    step = _step()
    return None if step is None or step.workers.graph() is not step.graph else step.workers


def samples_of_step() -> tuple | None:
    """Return the numbers of samples of this worker and of all workers in this step.

    `None` outside of a step, with one worker, and in a nested graph, such as a branch that some workers may not take.
    All workers must call this in the same order.
    """
    step = _step()
    if step is None or step.workers.size == 1 or workers_of_graph() is None:
        return None
    if step.samples is None:
        widest = keras.backend.result_type("float64")  # JAX warns of what it does not have
        samples = keras.ops.reshape(keras.ops.cast(step.workers.context.weight, widest), (1,))
        step.samples = samples[0], step.workers.total(samples)[0]
    return step.samples
