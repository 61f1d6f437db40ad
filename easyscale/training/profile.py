"""Profiling of the steps of a `fit()`, on request: `easyscale launch --profile` and `--trace`."""

import warnings

from easyscale import profiling
from easyscale.communicator import Communicator, clocks
from easyscale.communicator.data_axis import everyone_of
from easyscale.errors import EasyScaleWarning
from easyscale.settings import Settings

__all__ = ["Profile", "warn_of_none"]


class Profile:
    """Makes all ranks record the parts of their steps, and the chief report at the end where the time went.

    Args:
        communicator: The `Communicator`, whose `timeline` records.
    """

    def __init__(self, communicator: Communicator):
        self._ranks, self._timeline = everyone_of(communicator), communicator.timeline
        self._offsets: list[float] = []

    def begin(self) -> None:
        """Start to record, and compare clocks. All ranks must call this."""
        if self._timeline.is_on:
            self._offsets = clocks.offsets(self._ranks, lambda: 1e-9 * self._timeline.clock())
            self._timeline.begin()

    def end_data(self) -> None:
        """Record the end of this rank's last step in an epoch."""
        self._timeline.end_step()

    @property
    def number(self) -> int:
        """The number of this rank's last step."""
        return self._timeline.number

    def end_epoch(self, number: int) -> None:
        """Record the end of the epoch for all ranks, whose last step had this number at most."""
        self._timeline.settle(number)

    def end(self) -> None:
        """On the chief, report what all ranks have recorded, and write the file. All ranks must call this."""
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
            except OSError as error:  # it must not end training
                warnings.warn(
                    f"the file of a trace must be in a folder that may be written. Received: '{told.trace}' "
                    f"({error.strerror}), and none was written",
                    EasyScaleWarning,
                    stacklevel=2,
                )


def warn_of_none(communicator: Communicator, what: str) -> None:
    """Warn, on the chief, that the steps of `what` are not recorded, if recording was requested."""
    communicator.timeline.is_told = True
    if communicator.timeline.is_on and communicator.is_chief:
        warnings.warn(
            f"--profile and --trace are for steps that all workers make together. Received: {what}, of which nothing "
            "is recorded",
            EasyScaleWarning,
            stacklevel=2,
        )
