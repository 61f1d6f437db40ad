"""A worker's part of a `tf.data.Dataset`."""

import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from easyscale import called
from easyscale.communicator import Communicator
from easyscale.data import arrays, division
from easyscale.keras_internals import batch_size_of, inputs_of, keeps_batches, keeps_count
from easyscale.when_imported import when_imported

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["install", "is_endless", "of_all", "owns", "part"]


_local_batches: weakref.WeakKeyDictionary[Any, called.LocalBatch] = weakref.WeakKeyDictionary()


@functools.cache
def install() -> None:
    """Patch TensorFlow, also if it is imported later, to track datasets made of a worker's part or in local batches."""
    when_imported("tensorflow", _note_parts)


def _note_parts() -> None:
    import tensorflow as tf

    for name in ("from_tensor_slices", "from_tensors"):
        setattr(tf.data.Dataset, name, staticmethod(_noting(getattr(tf.data.Dataset, name))))
    tf.data.Dataset.batch = _noting_batches(tf.data.Dataset.batch)


def _noting(original: Callable) -> Callable:
    @functools.wraps(original)
    def made(tensors: Any, *args: Any, **kwargs: Any) -> "tf.data.Dataset":
        dataset = original(tensors, *args, **kwargs)
        return division.note_part(dataset) if division.is_part(tensors) else dataset

    return made


def _noting_batches(original: Callable) -> Callable:
    @functools.wraps(original)
    def batch(dataset: "tf.data.Dataset", batch_size: Any, *args: Any, **kwargs: Any) -> "tf.data.Dataset":
        batches = original(dataset, batch_size, *args, **kwargs)
        if isinstance(batch_size, called.LocalBatch):
            _local_batches[batches] = batch_size
        return batches

    return batch


def _local_batches_in(dataset: "tf.data.Dataset") -> list[called.LocalBatch]:
    """Return the batch sizes from `local_batch` with which a dataset was made."""
    own = [_local_batches[dataset]] if dataset in _local_batches else []
    return own + [local for source in inputs_of(dataset) for local in _local_batches_in(source)]


def owns(data: Any) -> bool:
    """Return whether `data` is a `tf.data.Dataset`, without loading TensorFlow."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(data, tf.data.Dataset)


def part(dataset: "tf.data.Dataset", communicator: Communicator, batched: bool | None = None) -> "tf.data.Dataset":
    """Return a dataset of this worker's elements; if elements are batches, of this worker's part of each."""
    import tensorflow as tf

    position, is_fixed = division.position_of(communicator), not communicator.membership.keeps_global_batch
    marked = (lambda dataset: dataset) if is_fixed else division.mark
    rank, size = position()
    if size == 1 and is_fixed:
        return dataset
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if not (_are_batches(dataset, shapes) if batched is None else batched):
        if (cardinality := int(dataset.cardinality())) >= 0:
            arrays.check_samples(cardinality, size)
        return dataset.shard(size, rank)

    if rank == 0:
        for divided in _local_batches_in(dataset):
            called.warn_of_batches_divided_twice(divided)

    def position_now() -> tuple:
        return (rank, size) if is_fixed else tf.numpy_function(position, [], (tf.int64, tf.int64))

    def local(batch: Any, start: int | tf.Tensor, size: int | tf.Tensor) -> Any:
        tensors = tf.nest.flatten(batch)
        parts = [tensor[start::size] if tensor.shape.rank != 0 else tensor for tensor in tensors]
        if not is_fixed:  # slicing with a tensor as the step loses the static shape
            shapes = [[None, *tensor.shape[1:]] if tensor.shape.rank != 0 else [] for tensor in tensors]
            parts = [tf.ensure_shape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        return tf.nest.pack_sequence_as(dataset.element_spec, parts)

    if (static := shapes[0][0]) is not None:
        arrays.check_samples(static, size, " of each batch")
        if static % size == 0:  # no part is empty, so the cardinality stays known; so do shapes while `size` is fixed
            return marked(dataset.map(lambda *batch: local(batch, *position_now())))

    small, repeats = division.SmallBatches(size), _repeats(dataset)
    if (batch := _batch_of(dataset)) is not None and batch < size and int(dataset.cardinality()) != 1:
        small.note(batch)

    def rows(before: tuple, batch: Any) -> tuple:
        samples, last = before
        rank, size = position_now()
        start = (rank - samples) % size  # element i of the whole dataset goes to worker i % size
        count = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
        if static is None:  # a batch with fewer samples than workers may be the last of an epoch

            def note() -> tf.Tensor:
                return count + 0 * tf.numpy_function(small.note, [tf.minimum(count, last)], tf.int64, stateful=True)

            # If the data repeats, another epoch may follow; but only one of two small batches in a row can be the last.
            count = tf.cond((tf.maximum(count, last) if repeats else last) < size, note, lambda: count)
        return (samples + count, count), local(batch, start, size)

    first = tf.constant(0, tf.int64), tf.constant(np.iinfo(np.int64).max, tf.int64)
    shards = division.note_small_batches(dataset.scan(first, rows), small)
    if static is not None:  # no part is empty
        return marked(shards)
    # Of a batch with fewer samples than workers, some workers get none.
    shards = shards.filter(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] > 0)
    if is_fixed and (count := _count(dataset, rank, size)) is not None:
        shards = shards.apply(tf.data.experimental.assert_cardinality(count))
    elif (batches := int(dataset.cardinality())) >= 0:
        division.mark_as_finite(shards, batches)
    return marked(shards)


def of_all(
    dataset: "tf.data.Dataset", gather: Callable[[list[np.ndarray]], list[list[np.ndarray]]], steps: int | None = None
) -> "tf.data.Dataset":
    """Return a dataset that interleaves the elements of all workers' datasets. Collective: all workers call this.

    If elements are ragged or sparse tensors, only this worker's elements are returned.

    Args:
        dataset: This worker's dataset.
        gather: Function. Returns the arrays of all workers, given those of this one.
        steps: Int. Number of elements to take from each worker. Defaults to `None`: all.
    """
    import tensorflow as tf

    elements = dataset if steps is None else dataset.take(steps)
    specs = tf.nest.flatten(dataset.element_spec)
    if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        return elements
    own = [np.asarray(tensor.numpy()) for element in elements for tensor in tf.nest.flatten(element)]
    by_worker = [list(zip(*[iter(arrays)] * len(specs), strict=True)) for arrays in gather(own)]
    in_turns = [row for rows in itertools.zip_longest(*by_worker) for row in rows if row is not None]
    shapes = [[None, *spec.shape[1:]] if spec.shape.rank else spec.shape for spec in specs]  # batches differ in size
    signature = tuple(tf.TensorSpec(shape, spec.dtype) for shape, spec in zip(shapes, specs, strict=True))
    whole = tf.data.Dataset.from_generator(lambda: iter(in_turns), output_signature=signature)
    return whole.map(lambda *tensors: tf.nest.pack_sequence_as(dataset.element_spec, tensors))


def _count(dataset: "tf.data.Dataset", rank: int, size: int) -> int | None:
    """Return the number of batches in which a worker has samples; `None` if the last batch's size is unknown.

    A `map` of batches may change their number of rows, so after one the last batch must have some to spare.
    """
    is_mapped = False
    while keeps_count(dataset):
        is_mapped |= not keeps_batches(dataset)
        (dataset,) = inputs_of(dataset)
    batch = batch_size_of(dataset)
    samples = int(inputs_of(dataset)[0].cardinality()) if batch is not None else -1
    if batch is None or samples < 0:
        return None
    if is_mapped and (samples % batch or batch) < 2 * size:
        return None
    if batch < size:  # no batch has two samples for the same worker
        return len(range(rank, samples, size))
    batches = -(-samples // batch)
    before = (batches - 1) * batch
    return batches if samples - before > (rank - before) % size else batches - 1


def is_endless(data: Any) -> bool:
    """Return whether `data` is a `tf.data.Dataset` known to have no end."""
    if not owns(data) or "take" in type(data).__name__.lower():
        return False
    cardinality = int(data.cardinality())  # a filter, such as that of a part, does not know
    return cardinality == -1 or (cardinality == -2 and any(map(is_endless, inputs_of(data))))


def _repeats(dataset: "tf.data.Dataset") -> bool:
    """Return whether `repeat` is among the transformations that made a dataset."""
    return "repeat" in type(dataset).__name__.lower() or any(map(_repeats, inputs_of(dataset)))


def _batch_of(dataset: "tf.data.Dataset") -> int | None:
    """Return the batch size of a dataset that makes batches, and then leaves their sizes unchanged; else `None`."""
    if (size := batch_size_of(dataset)) is not None:
        return size
    kind, inputs = type(dataset).__name__.lower(), inputs_of(dataset)
    if len(inputs) != 1 or any(word in kind for word in ("batch", "flat", "interleave", "window", "group")):
        return None
    return _batch_of(inputs[0])


def _are_batches(dataset: "tf.data.Dataset", shapes: list) -> bool:
    if any(shape.rank in (None, 0) for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        return False
    if shapes[0][0] is not None and not _has_been_batched(dataset):
        raise ValueError(
            "`batched` must be given for a dataset whose elements may be batches or single samples. Received: elements "
            f"of the shapes {', '.join(str(tuple(shape)) for shape in shapes)}. "
            "Pass `batched=True`, or `batched=False`"
        )
    return True


def _has_been_batched(dataset: "tf.data.Dataset") -> bool:
    """Return whether `batch` is among the transformations that made a dataset, with no `unbatch` after it."""
    kind = type(dataset).__name__.lower()
    if "unbatch" in kind or "batch" in kind:
        return "unbatch" not in kind
    return any(map(_has_been_batched, inputs_of(dataset)))
