"""`shard` of a `keras.utils.PyDataset`: every batch is divided among the workers."""

import keras
import numpy as np
import pytest

import easyscale

over_sizes = pytest.mark.parametrize("size", [1, 2, 3, 4])


class Numbers(keras.utils.PyDataset):
    """Batches of `0, 1, 2, ...`, with labels ten times as large and, if wanted, weights half as large."""

    def __init__(self, samples, batch, weights=False, **kwargs):
        super().__init__(**kwargs)
        self.samples, self.batch, self.weights = samples, batch, weights
        self.began = self.ended = 0

    def __len__(self):
        return -(-self.samples // self.batch)

    def __getitem__(self, index):
        x = np.arange(index * self.batch, min(self.samples, (index + 1) * self.batch))
        return (x, x * 10, x / 2) if self.weights else (x, x * 10)

    def on_epoch_begin(self):
        self.began += 1

    def on_epoch_end(self):
        self.ended += 1


class Endless(Numbers):
    def __init__(self, batch):
        super().__init__(10**9, batch)

    @property
    def num_batches(self):
        return None


@pytest.fixture
def shards(run_ranks):
    """`shards(size, dataset)`: what `shard(dataset)` returns on each of `size` workers."""
    return lambda size, *data: run_ranks(size, lambda comm: easyscale.shard(*data))


def _batches(dataset):
    return [dataset[index] for index in range(dataset.num_batches)]


@over_sizes
@pytest.mark.parametrize("weights", [False, True], ids=["x_y", "x_y_w"])
@pytest.mark.parametrize(
    "samples, batch",
    [(24, 12), (24, 5), (23, 4), (25, 12), (13, 6), (5, 5)],
    ids=["all_divide", "not_divided", "short_last", "last_of_one", "last_of_one_shifted", "one_batch"],
)
def test_each_batch_is_divided(shards, size, samples, batch, weights):
    parts = [_batches(part) for part in shards(size, Numbers(samples, batch, weights))]
    for rank, part in enumerate(parts):
        for x, y, *w in part:
            assert x.size
            assert (x % size == rank).all()
            np.testing.assert_array_equal(y, x * 10)
            assert len(w) == weights
            if weights:
                np.testing.assert_array_equal(w[0], x / 2)
    whole = _batches(Numbers(samples, batch))
    assert max(map(len, parts)) == len(whole)
    for k, (x, _) in enumerate(whole):
        together = np.concatenate([part[k][0] for part in parts if k < len(part)])
        assert sorted(together) == x.tolist()


def test_a_last_batch_of_fewer_than_workers_leaves_some_without(shards):
    parts = shards(4, Numbers(10, 8))
    assert [part.num_batches for part in parts] == [2, 2, 1, 1]
    assert [[x.tolist() for x, _ in _batches(part)] for part in parts] == [
        [[0, 4], [8]],
        [[1, 5], [9]],
        [[2, 6]],
        [[3, 7]],
    ]


def test_a_dataset_without_end_has_none_on_any_worker(shards):
    for rank, part in enumerate(shards(3, Endless(4))):
        assert part.num_batches is None
        numbers = np.concatenate([part[index][0] for index in range(9)])
        assert numbers.tolist() == list(range(rank, 36, 3))


def test_structured_batches_are_divided(shards):
    class Named(Numbers):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return {"x": x, "two": [x + 1, x + 2]}, y

    inputs, y = shards(2, Named(8, 4))[1][1]
    assert inputs["x"].tolist() == [5, 7]
    assert [part.tolist() for part in inputs["two"]] == [[6, 8], [7, 9]]
    assert y.tolist() == [50, 70]


def test_epochs_are_passed_on(shards):
    dataset = Numbers(8, 4)
    part = shards(2, dataset)[0]
    part.on_epoch_begin()
    part.on_epoch_end()
    part.on_epoch_end()
    assert (dataset.began, dataset.ended) == (1, 2)


def test_it_loads_with_as_many_workers_as_the_dataset(shards):
    part = shards(2, Numbers(8, 4, workers=3, use_multiprocessing=False, max_queue_size=5))[1]
    assert isinstance(part, keras.utils.PyDataset)
    assert (part.workers, part.use_multiprocessing, part.max_queue_size) == (3, False, 5)


def test_fit_takes_a_shard(shards):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse", weighted_metrics=["mae"])
    part = shards(2, Numbers(9, 4, weights=True))[1]  # 1, 3, 5, 7 with weights of half that, labels ten times that
    history = model.fit(part, verbose=0)
    x = np.array([1, 3, 5, 7])
    np.testing.assert_allclose(history.history["mae"], [(x * 10 * x / 2).sum() / (x / 2).sum()], rtol=1e-6)


def test_one_worker_gets_the_dataset_itself(shards):
    dataset = Numbers(8, 4)
    assert shards(1, dataset)[0] is dataset


def test_batches_of_fewer_samples_than_workers_are_an_error(shards):
    with pytest.raises(ValueError) as raised:
        shards(3, Numbers(100, 2))
    assert str(raised.value) == (
        "every worker must get at least one sample of each batch. Received: 2 samples for 3 workers. "
        "Start fewer workers, or make larger batches"
    )
