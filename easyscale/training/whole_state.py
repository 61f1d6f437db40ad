"""The whole state of a `fit()`, as in a checkpoint: gathered from all ranks, and distributed to them."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from easyscale.checkpoint.folder import Checkpoint
from easyscale.errors import EasyScaleError, EasyScaleWarning
from easyscale.optimizer import DistributedOptimizer
from easyscale.training import whole_batches
from easyscale.training.checkpoint_contents import VERSION
from easyscale.training.checkpointed import CheckpointedState
from easyscale.training.stateful import State

__all__ = ["WholeState"]

_OF_CHIEF = ("weights", "optimizers", "metrics", "callbacks")  # the chief's, or the same on all ranks
_RESIDUALS = "residuals"  # those of each rank, on the chief, if compressions keep some
_OF_EACH = ("data", "random", "seeds")  # different on each rank


class WholeState:
    """Converts the state of all ranks to a checkpoint, and back. All methods are collective.

    Args:
        model: The model.
        optimizer: The first `DistributedOptimizer` of the model.
        state: The `TrainingState`, or another `CheckpointedState`.
    """

    def __init__(self, model: keras.Model, optimizer: DistributedOptimizer, state: CheckpointedState):
        self._model, self._optimizer, self._state = model, optimizer, state
        self._communicator = optimizer.workers.communicator

    def reserve(self) -> None:
        """See `TrainingState.reserve`."""
        self._state.reserve()

    def release(self) -> None:
        """Free the memory of snapshots."""
        self._state.memory.release()

    def collect(self, steps: int, ended: bool) -> Checkpoint | None:
        """Return the state, on the chief.

        Args:
            steps: Int. The number of steps so far, even if this rank has made fewer.
            ended: Bool. Whether `fit()` has ended.
        """
        states = self._state.state({*_OF_CHIEF, *_OF_EACH, _RESIDUALS, "progress", "decisions"})
        all_ranks = self._communicator.all_gather_object({name: states[name].about for name in _OF_EACH})
        if not self._communicator.is_chief:
            return None
        about = {
            "version": VERSION,
            "epoch": states["progress"].about["epoch"] + ended,  # the next one
            "steps": steps,
            "ended": ended,
            "stopped": states["decisions"].about["stopped"],
            **{name: states[name].about for name in _OF_CHIEF},
            **{name: [state[name] for state in all_ranks] for name in _OF_EACH},
        }
        if self._state.has(_RESIDUALS) and states[_RESIDUALS].about:
            about[_RESIDUALS] = states[_RESIDUALS].about
        return Checkpoint(about, {name: array for state in states.values() for name, array in state.arrays.items()})

    # Restoring

    def check(self, about: dict, folder: Path) -> None:
        """Raise `EasyScaleError` unless a checkpoint is of this model and these optimizers.

        Args:
            about: Dict. The checkpoint's description of itself.
            folder: `Path`. The folder that it is from.
        """
        pairs = zip([*self._state.weights.describe(), None], [*about["weights"], None], strict=False)
        first = next(((a, b) for a, b in pairs if _own_name(a) != _own_name(b)), None)
        if self._model.built and first is not None:
            raise EasyScaleError(
                f"a checkpoint must be of the same model. Received: weight {first[1]} in '{folder}', "
                f"{first[0]} in the model. Use another folder for another model"
            )
        here, there = self._state.optimizers.describe(), about["optimizers"]
        if here != there:
            raise EasyScaleError(
                f"a checkpoint must be of the same optimizers. Received: {there} in '{folder}', {here} in "
                "the model. Use another folder for another optimizer"
            )

    def put_back(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Restore model, optimizers, metrics, callbacks and random numbers from a checkpoint.

        Args:
            checkpoint: `Checkpoint`. It may be of another number of ranks.
            folder: `Path`. The folder that it is from.

        Raises:
            EasyScaleError: If that is not possible.
        """
        self.check(checkpoint.about, folder)
        try:
            self._put_back(*checkpoint, folder)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise EasyScaleError(
                f"a checkpoint must be one that EasyScale has written. Received: one in '{folder}' that "
                f"cannot be put back ({' '.join(str(error).split())[:300]}). Remove it, or use another folder"
            ) from error

    def _put_back(self, about: dict, arrays: Mapping[str, np.ndarray], folder: Path) -> None:
        states = {name: State(about.get(name), arrays) for name in _OF_CHIEF}
        self._state.load({name: states[name] for name in ("weights", "optimizers")})
        if self._state.has(_RESIDUALS) and _RESIDUALS in about:
            self._state.load({_RESIDUALS: State(about[_RESIDUALS], arrays)})
        self._put_back_random_numbers(about, folder)
        if self._is_in_epoch(about, folder) and self._has_metrics(about, arrays["metrics"], folder):
            self._state.load({"metrics": states["metrics"]})
        self._state.load({"callbacks": states["callbacks"]})

    def position_in_data(self, about: dict, batch: dict[str, int], folder: Path) -> State:
        """Return the position in its data where this rank resumes, after the same samples. All ranks must call this.

        Args:
            about: Dict. The checkpoint's description of itself.
            batch: Dict. The result of `whole_batches.local_batch` on this rank.
            folder: `Path`. The folder that the checkpoint is from.
        """
        positions = about["data"]
        before, now = [position.get("batch", {}) for position in positions], self._communicator.all_gather_object(batch)
        found = whole_batches.sizes(before, now)
        if found is None or found[0] == found[1]:
            most = max(position["batches"] for position in positions)
            return State({**positions[self._rank_in(positions)], "steps": most})
        position, rest = whole_batches.position_among(positions, *found)
        if rest and position["calls"] and self._optimizer.is_synchronous:
            self._warn(
                "a checkpoint should lie between two batches. Received: another global batch than when that in "
                f"'{folder}' was written, which lies within batch {position['calls'] + 1} of epoch "
                f"{about['epoch'] + 1} now. This batch is trained on as a whole. Use the same global batch, or one "
                "that goes into it evenly"
            )
        return State({**position, "steps": position["batches"]})

    def _rank_in(self, all_ranks: list) -> int:
        """Return which of a checkpoint's ranks this one resumes from: the chief if their number differs."""
        return self._communicator.rank if len(all_ranks) == self._communicator.size else 0

    def _put_back_random_numbers(self, about: dict, folder: Path) -> None:
        rank, here = self._rank_in(about["random"]), self._state.seeds.state().about
        there = about["seeds"][rank]
        if len(there) != len(here):
            raise EasyScaleError(
                f"a checkpoint must be of the same model. Received: {len(there)} layers with random numbers in "
                f"'{folder}', {len(here)} in the model. Use another folder for another model"
            )
        is_own = len(about["random"]) == self._communicator.size and [*map(len, here)] == [*map(len, there)]
        if is_own:
            self._state.load({"random": State(about["random"][rank]), "seeds": State(there)})
        else:
            self._state.seeds.derive(State(about["seeds"][0]))

    def _is_in_epoch(self, about: dict, folder: Path) -> bool:
        """Return whether training resumes within an epoch, or at its first step: else metrics are of the last one."""
        has_steps = any(position["calls"] for position in about["data"])
        if not about["ended"] and not self._optimizer.is_synchronous and has_steps:
            self._warn(
                "where servers do not wait, training goes on from the begin of an epoch. Received: a checkpoint in the "
                f"middle of epoch {about['epoch'] + 1}, in '{folder}'. All of its data is trained on again"
            )
            return False
        return not about["ended"]

    def _has_metrics(self, about: dict, rows: np.ndarray, folder: Path) -> bool:
        """Return whether a checkpoint has states of the model's metrics."""
        here = self._state.metrics.describe()
        if here is None:
            return True
        there = about.get("metrics", here)
        if there == here and rows.shape[1] == sum(size for *_, size in here):
            return True
        if rows.any():  # before the first step there are none
            self._warn(
                "a checkpoint's metrics should be the model's. Received: "
                f"{[name for _, name, _ in there]} in '{folder}', {[name for _, name, _ in here]} in the "
                f"model. Those of epoch {about['epoch'] + 1} are of the rest of it"
            )
        return False

    def _warn(self, text: str) -> None:
        if self._communicator.is_chief:
            warnings.warn(text, EasyScaleWarning, stacklevel=3)


def _own_name(weight: list | None) -> list | None:
    """Return a weight's path and shape without what Keras numbers: the names of its layers."""
    return weight and [weight[0].rpartition("/")[2], weight[1]]
