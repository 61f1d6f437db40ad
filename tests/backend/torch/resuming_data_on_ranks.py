"""A `fit()` on PyTorch goes on from a checkpoint with data that other backends do not have."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch  # noqa: E402
from covering import full  # noqa: E402
from resuming_on_ranks import BATCH, EPOCHS, goes_on  # noqa: E402


def _loader(x, y):
    data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    return {"x": torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)}


def _generator(x, y):
    def batches():
        for _ in range(EPOCHS):
            for begin in range(0, 32, BATCH):
                yield x[begin : begin + BATCH], y[begin : begin + BATCH]

    return {"x": batches()}


@full
def check_a_data_loader_that_shuffles():
    goes_on(_loader, 14)


def check_a_generator_that_goes_on_in_the_next_epoch():
    goes_on(_generator, 7, steps_per_epoch=5)
