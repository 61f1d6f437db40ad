"""The user's description of a pipeline."""

import contextlib
from collections.abc import Sequence

from easyscale import backend as backends
from easyscale import communicator as communicators
from easyscale.backend.base import Feature
from easyscale.communicator import Communicator
from easyscale.errors import is_number
from easyscale.parallel.pipeline import schedules
from easyscale.parallel.pipeline.built import built_for
from easyscale.parallel.pipeline.schedules import Schedule
from easyscale.parallel.split.split import Split

__all__ = ["Pipeline"]

_WAYS = ("time", "weights")


class Pipeline:
    """Cut the model into stages, one on each of as many neighbouring ranks, and send micro-batches through them.

            rank 0          rank 1
            stage 0  --->   stage 1        data 0        2 stages on 4 ranks: each pipeline is one worker;
               |               |                         the weights of a stage are exchanged between pipelines
            stage 0  --->   stage 1        data 1
            rank 2          rank 3

    In a step of `M` micro-batches through `S` equally fast stages, the idle fraction is `(S - 1) / (M + S - 1)`. For
    each sample a stage sends the tensors that cross its cut, and receives gradients of the same size.

    With `split`, each stage is on a group of `G` neighbouring ranks, which divide some of its layers among themselves:
    a worker is `S G` ranks, and each of them sends crossing tensors to the rank with the same slices in the next stage.

            rank 0 | rank 1         rank 2 | rank 3
            stage 0, slices  --->   stage 1, slices        2 stages of 2 ranks each, on 4 ranks

    Within a group a rank sends, per batch, the bytes stated in `easyscale.parallel.split.trip.within` for each layer,
    in `M` times as many messages.

    Args:
        stages: Int. The number of stages. Defaults to `None`: one more than `cut` has names.
        microbatches: Int. The number of parts of a worker's batch; a batch of fewer samples has as many parts as
            samples. Defaults to `8`.
        schedule: String. `"1f1b"` or `"gpipe"`; see `easyscale.parallel.pipeline.schedules`. Defaults to `"1f1b"`.
        cut: List of strings, or one. The names of layers, in any order, each the last one of its stage; `"time"`:
            minimizes the time of the slowest stage, measuring each layer once, some 50 ms; `"weights"`: minimizes the
            weights of the largest stage. Defaults to `"time"`.
        split: `Split` with a `group`: the number of ranks per stage; `"all"` puts all ranks into a single pipeline. Not
            by `"vocabulary"`. Defaults to `None`: one rank has the whole stage.

    Attributes:
        names: List of the names; `None` if there are none.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> Pipeline(stages=2, microbatches=4)
    Pipeline(stages=2, microbatches=4, schedule='1f1b', cut='time')
    >>> Pipeline(cut=["block_4", "block_8"]).stages
    3
    >>> Pipeline(stages=2, split=Split({"fc.*": "columns"}, group=2)).ranks_of_stage(8)
    2
    """

    def __init__(
        self,
        stages: int | None = None,
        microbatches: int = 8,
        schedule: str | Schedule = "1f1b",
        cut: Sequence[str] = "time",
        split: Split | None = None,
    ):
        names = None if isinstance(cut, str) and cut in _WAYS else cut
        for name, value, least in (("stages", stages, 2), ("microbatches", microbatches, 1)):
            if value is None and name == "stages" and names is not None:
                continue
            if isinstance(value, bool) or not is_number(value, least, whole=True):
                raise ValueError(f"`{name}` must be an integer of {least} or more. Received: {name}={value!r}")
        if names is not None:
            if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
                raise ValueError(
                    f"`cut` must be 'time', 'weights', or a list of names of layers. Received: {cut=}. Write such as "
                    "cut=['block_4']"
                )
            if stages not in (None, len(names) + 1):
                raise ValueError(
                    f"`cut` must have one name less than there are stages. Received: {stages=}, {cut=}. Leave "
                    "`stages` out"
                )
        if split is not None:
            _check_split(split)
        self.split = split
        self.stages = int(stages) if stages is not None else len(cut) + 1
        self.microbatches = int(microbatches)
        self.schedule = schedules.get(schedule)
        self.names = None if names is None else list(names)
        self.cut = cut if self.names is None else self.names

    def scope(self, communicator: str | Communicator | None = None) -> contextlib.AbstractContextManager[None]:
        """Return a context for building a model so that a rank never has weights of other stages.

        Within it, layers get no weights. When `fit()` starts, and the layers are assigned to ranks, each rank's layers
        get theirs, the same as in one process after `keras.utils.set_random_seed`. After `fit()` a rank has the weights
        of its stage and their optimizer state; all ranks call `save` to write a complete file. With one rank it changes
        nothing.

        Args:
            communicator: See `easyscale.communicator.get`. Defaults to `None`.

        Example:

        >>> pipeline = Pipeline(stages=2)
        >>> with pipeline.scope():
        ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64), keras.layers.Dense(1)])
        """
        ranks = communicators.get(communicator)
        if ranks.size == 1:
            return contextlib.nullcontext()
        if self.split is not None:
            raise ValueError(
                "layers that are split are divided from what each rank has of the whole model. Received: `scope()` of "
                f"a pipeline with split={self.split}. Build the model outside of `scope()`, or leave `split` out"
            )
        backends.get().require(Feature.PIPELINE)
        return built_for(self, ranks)

    def ranks_of_stage(self, ranks: int) -> int:
        """Return the number of ranks per stage, given the total number; 1 without `split`."""
        if self.split is None or self.split.group is None:
            return 1
        return max(1, ranks // self.stages) if isinstance(self.split.group, str) else self.split.group

    def ranks_of_worker(self, ranks: int) -> int:
        """Return the number of ranks per pipeline, given the total number."""
        return self.stages * self.ranks_of_stage(ranks)

    def check(self, ranks: int) -> None:
        """Raise `ValueError` if this number of ranks does not form whole pipelines."""
        count = self.ranks_of_worker(ranks)
        if ranks % count:
            below = ranks // count * count
            near = " or ".join(str(number) for number in (below, below + count) if number)
            of_stage = f", of which each is on {count // self.stages} ranks" if count > self.stages else ""
            raise ValueError(
                "the number of ranks must be a multiple of the stages of a pipeline. Received: "
                f"{ranks} ranks, stages={self.stages}{of_stage}. Start {near}"
            )

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split}"
        return (
            f"Pipeline(stages={self.stages}, microbatches={self.microbatches}, schedule={self.schedule.name!r}, "
            f"cut={self.cut!r}{split})"
        )


def _check_split(split: Split) -> None:
    if not isinstance(split, Split):
        raise ValueError(
            f"`split` must be an `easyscale.parallel.Split`. Received: split={split!r}. Write such as "
            "Split({'fc.*': 'columns'}, group=2)"
        )
    if split.group is None:
        raise ValueError(
            "the layers of a stage are split within a group of ranks that have it. Received: "
            f"split={split}, without `group`. Write such as Split({{'fc.*': 'columns'}}, group=2)"
        )
    if "vocabulary" in split.layers.values():
        raise ValueError(
            f"the loss of a pipeline needs whole logits. Received: split={split}. Split the last layer by 'columns'"
        )
