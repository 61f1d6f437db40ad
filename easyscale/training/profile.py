"""What a `fit()` says of the time of its steps, if that is asked for: by `easyscale launch --profile` and `--trace`."""

import warnings

from easyscale import profiling
from easyscale.communicator import Communicator, clocks
from easyscale.communicator.data_axis import everyone_of
from easyscale.errors import EasyScaleWarning
from easyscale.settings import Settings

__all__ = ["Profile", "warn_of_none"]


class Profile:
    """Has all ranks record the parts of their steps, and the chief say at the end where the time went.

    Args:
        communicator: The `Communicator`, whose `timeline` records.
    """

    def __init__(self, communicator: Communicator):
        self._ranks, self._timeline = everyone_of(communicator), communicator.timeline
        self._offsets: list[float] = []

    def begin(self) -> None:
        """Begin to count, and compare clocks. All ranks call this together."""
        if self._timeline.is_on:
            self._offsets = clocks.offsets(self._ranks, lambda: 1e-9 * self._timeline.clock())
            self._timeline.begin()

    def end_data(self) -> None:
        """Take in that the last step of this rank in an epoch is over."""
        self._timeline.end_step()

    @property
    def number(self) -> int:
        """The number of this rank's last step."""
        return self._timeline.number

    def end_epoch(self, number: int) -> None:
        """Take in that the epoch is over for all ranks, whose last step had this number at most."""
        self._timeline.settle(number)

    def end(self) -> None:
        """Let the chief say what all ranks have recorded, and write the file. All ranks call this together."""
        if not self._timeline.is_on or not self._offsets:
            return
        told = Settings.read(names=["profile", "trace"])
        ranks = profiling.gather(self._ranks, self._offsets, sends_spans=told.trace is not None)
        if ranks and told.profile:
            lines = [*profiling.table(ranks), profiling.advise(ranks)]
            print("\n".join(f"EasyScale: {line}" for line in lines), flush=True)
        if ranks and told.trace is not None:
            try:
                profiling.write(told.trace, ranks)
                if not any(rank.spans for rank in ranks):
                    made = self._timeline.number + 1
                    print(f"EasyScale: no step to trace has been made yet. There were {made}", flush=True)
            except OSError as error:  # training is not lost for it
                warnings.warn(
                    f"the file of a trace must be in a folder that may be written. Received: '{told.trace}' "
                    f"({error.strerror}), and none was written",
                    EasyScaleWarning,
                    stacklevel=2,
                )


def warn_of_none(communicator: Communicator, what: str) -> None:
    """Have the chief warn, if steps are to be recorded, that those of `what` are not."""
    communicator.timeline.is_told = True
    if communicator.timeline.is_on and communicator.is_chief:
        warnings.warn(
            f"--profile and --trace are for steps that all workers make together. Received: {what}, of which nothing "
            "is recorded",
            EasyScaleWarning,
            stacklevel=2,
        )
