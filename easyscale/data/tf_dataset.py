"""A worker's part of a `tf.data.Dataset`."""

import sys

__all__ = ["owns", "part"]


def owns(data: object) -> bool:
    """Return whether `data` is a `tf.data.Dataset`, without loading TensorFlow."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(data, tf.data.Dataset)


def part(dataset: object, rank: int, size: int, batched: bool | None = None) -> object:
    """Return a dataset of every `size`-th element; of every batch's elements if the elements are batches."""
    import tensorflow as tf

    if size == 1:
        return dataset
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if not _are_batches(shapes) if batched is None else not batched:
        return dataset.shard(size, rank)

    def rows(before: tf.Tensor, batch: object) -> tuple:
        first = tf.nest.flatten(batch)[0]
        start = (rank - before) % size  # element i of the whole dataset goes to worker i % size
        mine = tf.nest.map_structure(lambda tensor: tensor[start::size], batch)
        return before + tf.shape(first, out_type=tf.int64)[0], mine

    shards = dataset.scan(tf.constant(0, tf.int64), rows)
    static = shapes[0][0]
    if static is not None and static % size == 0:  # all parts are equal, so the shapes can stay static
        whole = tf.nest.map_structure(lambda spec: tf.TensorShape([static // size, *spec.shape[1:]]), dataset.element_spec)
        shards = shards.map(lambda *batch: tf.nest.map_structure(tf.ensure_shape, _single(batch), whole))
        return shards.apply(tf.data.experimental.assert_cardinality(dataset.cardinality()))
    # A batch of fewer elements than workers leaves nothing for some of them.
    return shards.filter(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] > 0)


def _single(batch: tuple) -> object:
    return batch if len(batch) > 1 else batch[0]


def _are_batches(shapes: list) -> bool:
    if any(shape.rank in (None, 0) for shape in shapes):
        return False
    return len({shape[0] for shape in shapes}) == 1
