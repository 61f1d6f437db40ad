"""Losses of the global batch, and means of them.

Gradients are averaged over samples. That is correct for a loss that is the mean over its samples. If it is a sum, or a
mean over weights, over unmasked elements, or over elements that a step has chosen, each worker's loss depends on their
total over all workers. After `install()` every Keras loss in a step of all workers (`current_step`) is scaled so that
its mean over workers, weighted by samples, is the loss of the global batch. With `n_r` samples on worker `r`, and the
divisor `d_r` of its loss (1 for a sum; the sum of weights, or the number of elements), that is

    loss_r * d_r / sum_r(d_r) * sum_r(n_r) / n_r        for a mean
    loss_r * sum_r(n_r) / n_r                           for a sum

A custom step may also differentiate a loss that is not reduced, which TensorFlow treats as its sum. There the gradients
are scaled, like those of a sum.

A `keras.metrics.Mean` counts each number that it is given once, whatever the number was computed from. So the numbers
that workers give it in a step are weighted by each worker's part of the step's samples: together they count once.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.step.whole_batch import WholeBatch
from easyscale.training.current_step import counts_elements, samples_of_step, workers_of_graph, workers_of_step
from easyscale.training.keras_fit import is_overridden

__all__ = ["check", "install", "may_choose_elements"]

_is_installed = False


def install() -> None:
    """Make Keras's losses, and means of numbers, account for all workers inside of their steps."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        _replace("reduce_weighted_values", _reduce)
        _replace("scale_loss_for_distribution", _as_it_is)
        _replace("unscale_loss_for_distribution", _as_it_is)
        keras.metrics.Mean.update_state = _weigh_numbers(keras.metrics.Mean.update_state)
        backends.get().scale_sums(_samples, _factor_of_sums)


def may_choose_elements(model: keras.Model) -> bool:
    """Return whether a loss of the model's steps may be a mean over only some elements of its batch.

    A custom step, `compute_loss` or loss may leave elements out before Keras takes the mean. Keras's own losses, as
    passed to `compile()`, do not.
    """
    if any(is_overridden(model, name) for name in ("train_step", "test_step", "compute_loss")):
        return True
    return not all(map(_is_of_keras, keras.tree.flatten(getattr(model, "loss", None))))


def _is_of_keras(loss: Any) -> bool:
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    defined = loss.fn if type(loss).__module__.startswith("keras.") and hasattr(loss, "fn") else loss
    module = getattr(defined, "__module__", None) or type(defined).__module__
    return loss is None or module.startswith("keras.")


def check(model: keras.Model) -> None:
    """Raise `ValueError` if `compile()` was given a loss that is not reduced to one number.

    Keras trains on the gradient of the sum of its values, but treats it as a mean everywhere else. A model with a
    custom step or loss may reduce it there.
    """
    if any(is_overridden(model, name) for name in ("train_step", "compute_loss")):
        return
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        if getattr(loss, "reduction", "sum") in (None, "none"):
            raise ValueError(
                "a loss that several workers train by must be one number for a batch. Received: "
                f"reduction={loss.reduction!r} of {type(loss).__name__}. Its gradient is that of the sum: use "
                "reduction='sum'"
            )


def _replace(name: str, replacement: Callable) -> None:
    """Make Keras call `replacement(original, workers, ...)` in place of its function inside of a step."""

    def replace(original: Callable) -> Callable:
        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            workers = workers_of_step()
            return original(*args, **kwargs) if workers is None else replacement(original, workers, *args, **kwargs)

        return replaced

    keras_internals.replace_in_losses(name, replace)


def _reduce(
    original: Callable,
    workers: WholeBatch,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: str | None = None,
) -> Any:
    loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
    divisor = _divisor(values, sample_weight, mask, reduction)
    if divisor is None or len(values.shape) == 0:
        return loss
    if len(loss.shape):  # Keras does not reduce a loss without elements
        loss = keras.ops.sum(loss)
    samples = keras.ops.cast(workers.context.weight, loss.dtype)
    divisor = keras.ops.where(samples > 0, keras.ops.cast(divisor, loss.dtype), 0)
    same_data = loss if reduction == "sum" else None  # a mean over data that each worker has in full is theirs already
    totals = workers.total(keras.ops.stack([samples, divisor]), same_data)
    all_samples, all_divisors = keras.ops.unstack(totals, num=2)
    share = keras.ops.divide_no_nan(divisor, all_divisors) if reduction != "sum" else 1
    return loss * keras.ops.stop_gradient(share * all_samples / samples)


def _as_it_is(original: Callable, workers: WholeBatch, value: Any) -> Any:
    """Return the loss of one replica as it is: Keras would divide it by their number, and multiply for its metrics."""
    return value


def _samples() -> Any:
    """Return the number of this worker's samples in a step of several workers; `None` outside of one."""
    workers = workers_of_step()
    return None if workers is None or workers.size == 1 else workers.context.weight


def _factor_of_sums() -> Any:
    """Return the factor for the gradient of a sum over this worker's samples.

    Raises:
        ValueError: If it is differentiated in a nested graph of the step, where workers cannot communicate.
    """
    if workers_of_graph() is None:
        raise ValueError(
            "a loss with one value per sample cannot be differentiated inside of a `tf.function` or a branch of "
            "`train_step`, where workers cannot communicate. Received: such a loss. Reduce it by "
            "`keras.ops.mean(loss)`, or call `tape.gradient` in `train_step` itself"
        )
    of_step = samples_of_step()
    return None if of_step is None else keras.ops.divide_no_nan(of_step[1], of_step[0])


def _divisor(values: Any, sample_weight: Any, mask: Any, reduction: str | None) -> Any:
    """Return the divisor of the loss on this worker; `None` if it is the same number of elements for each sample."""
    if reduction == "sum":
        return 1.0
    if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
        weights = None if sample_weight is None else keras.ops.copy(sample_weight)  # Keras may mask it in its place
        return keras.ops.sum(keras_internals.apply_mask(weights, mask, keras.config.floatx(), reduction))
    if reduction in ("mean", "sum_over_batch_size") and mask is not None:
        return keras.ops.sum(keras.ops.cast(mask, keras.config.floatx()))
    if reduction not in (None, "none") and counts_elements() and workers_of_graph() is not None:
        return keras.ops.size(values)  # in a branch that some workers may not take, by samples
    return None


def _weigh_numbers(original: Callable) -> Callable:
    @functools.wraps(original)
    def update_state(metric: keras.metrics.Mean, values: Any, sample_weight: Any = None) -> Any:
        # Keras weights by the batch size if the graph knows it, which may not be so on all workers. Where the numbers
        # of samples are always known, as without a graph, the workers' weights add up to that of one process.
        is_known, workers = isinstance(sample_weight, int), workers_of_step()
        is_counted = workers is not None and (
            isinstance(workers.context.weight, (int, float)) or workers.graph() is None
        )
        if is_known and is_counted:
            return original(metric, values, sample_weight)
        if (
            (sample_weight is None or is_known)
            and getattr(values, "shape", ()) == ()
            and (of_step := samples_of_step())
        ):
            samples, all_samples = of_step
            sample_weight = keras.ops.divide_no_nan(sample_weight * 1.0 if is_known else samples, all_samples)
        return original(metric, values, sample_weight)

    return update_state
