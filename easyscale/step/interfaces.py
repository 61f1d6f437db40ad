"""What training, updates and checkpoints ask of a replication, and what passes between them.

Each protocol is what one of them needs, and `Replication` has an object for each.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange import Exchange
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Variable
from easyscale.step.accumulation import Accumulation
from easyscale.step.agreement import Agreed, Purpose
from easyscale.step.compressed_sums import CompressedSums
from easyscale.step.late_gather import LateGather

if TYPE_CHECKING:
    from easyscale.step.owned_slices import OwnedSlices
    from easyscale.step.ready_buckets import EarlyGradients

__all__ = [
    "Apply",
    "ApplyInStep",
    "ExchangeArgument",
    "Gradient",
    "GradientSync",
    "Model",
    "ModelScope",
    "OwnedWeights",
    "StepContext",
    "StepProtocol",
    "Tensor",
    "WholeBatch",
]

T = TypeVar("T")


class Model(Protocol):
    """A model of Keras."""

    name: str

    @property
    def metrics_variables(self) -> Sequence[Variable]: ...


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What an optimizer's step knows of its batch.

    Attributes:
        weight: Scalar tensor or number. The weight of this worker's gradients in the mean over workers: the number of
            samples that they were made from. Defaults to `1.0`.
        data: Vectors: how the tensors of this step's batch begin. Defaults to none.
        moving: Variables that each worker moves by itself in every step, such as the moving statistics of batch
            normalization. With every exchange of gradients they become their mean over workers. Defaults to none.
        losses: Variables that are finite as long as the losses of this worker are. Defaults to none.
        late: `LateGather`. By which the new weights come in the next step; this one has begun with its `receive`.
            Defaults to `None`: they come at the end of this step.
        adjust: Function. Takes the means of gradients that the update is made by, and a function that returns the sum
            of squares of each as a whole; returns those that it is made by instead. So stages of a pipeline clip by the
            norm over all of them. Defaults to `None`.
        came: Scalar tensor or number. When the batch has come; see `Timeline.came`. Defaults to `None`: it is not
            recorded.
        as_made: Bool. Whether gradients come to the optimizer as the backward pass makes them: nothing in the step
            changes them before. Defaults to `False`.
    """

    weight: Any = 1.0
    data: Sequence[Any] = ()
    moving: Sequence[Variable] = ()
    losses: Sequence[Variable] = ()
    late: LateGather | None = None
    adjust: Callable[[list, Callable[[list], Any]], list] | None = None
    came: Any = None
    as_made: bool = False


Tensor: TypeAlias = Any  # of the backend

ExchangeArgument: TypeAlias = str | Exchange | type[Exchange] | None  # what a user gives as `exchange`

Gradient: TypeAlias = Any  # a tensor, some rows of one, or `None` for a variable that has none

Apply: TypeAlias = Callable[[list, list], None]  # changes variables, its second argument, by gradients, its first

ApplyInStep: TypeAlias = Callable[[StepContext, list, list], None]  # the same, after their mean over workers


class GradientSync(Protocol):
    """What an update needs: the three movements of a step, and who owns which part of the weights.

    Attributes:
        communicator: The `Communicator` between processes.
        exchange: The connected `Exchange` that is used.
        slices: The `OwnedSlices`, variables of which each worker has a slice now.
        early: The `EarlyGradients`, which leave while a backward pass makes them.
        sums: The `CompressedSums`; `None` if gradients travel as they are.
    """

    communicator: Communicator
    slices: "OwnedSlices"
    early: "EarlyGradients"

    @property
    def exchange(self) -> Exchange: ...

    @property
    def sums(self) -> CompressedSums | None: ...

    def choose(self, variables: Sequence[Variable]) -> None:
        """Choose, the first time, what is left open of exchange and buckets. All workers must call this alike."""

    def shard(self, variables: Sequence[Variable], whole: bool = False) -> Shards:
        """Return which parts of `variables`, or which `whole` ones, each worker owns. All must call this alike."""

    def reduce(
        self,
        context: StepContext,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        accumulation: Accumulation | None = None,
        shards: Shards | None = None,
    ) -> list[Gradient]:
        """Return the mean of all workers' gradients, in the graph, each worker's weighted by the context's.

        Args:
            context: `StepContext`.
            gradients: Tensors, `IndexedSlices`, or `None` for a variable that has none.
            variables: The variables they belong to.
            accumulation: `Accumulation`. With it, where it is not due, the workers' own gradients are returned, so
                weighted that the sum over steps and workers is that of the means. Defaults to `None`.
            shards: The `Shards` of the variables. With them, this worker's parts of the means are returned, flat.
                Defaults to `None`.
        """

    def begin_reduce(
        self, context: StepContext, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> Callable[[], list[Gradient]]:
        """Begin what `reduce` does, which goes on beside the graphs that follow.

        No worker may begin another exchange, or meet the others, before this one has ended.

        Args:
            context: `StepContext`.
            gradients: Tensors, one for each variable.
            variables: The variables they belong to.

        Returns:
            Function that returns the means when they have come, of gradients and then of moving statistics, to which
            they are not assigned. For another graph.
        """

    def update(
        self, apply: Apply, gradients: Sequence[Gradient], variables: Sequence[Variable], compiles: bool = False
    ) -> None:
        """Call `apply(gradients, variables)` in a graph of its own. See `CompiledUpdate`."""

    def forget_updates(self) -> None:
        """Trace what `update` calls anew when it is called again: it changes other variables."""

    def gather(
        self,
        shards: Shards,
        parts: Mapping[int, Variable],
        variables: Sequence[Variable],
        late: LateGather | None = None,
    ) -> None:
        """Give all workers the parts of `variables`, by number, that each of them has computed.

        The memory of what is assigned may be that of several workers. It is written to again when none has it any more.
        The parts become views of it, so that no weight is there twice.

        Args:
            shards: The `Shards` of the variables.
            parts: Variables, the worker's own parts, flat.
            variables: The variables.
            late: `LateGather` of them, by which they come in the next step. Defaults to `None`: in this one.
        """

    def late_gather(self, shards: Shards, variables: Sequence[Variable]) -> LateGather | None:
        """Return what gathers `variables` while the next step begins; `None` where that does not gain, or cannot be.

        It gains where gradients leave in several buckets: between nodes, or where the user has asked for it.
        """

    def total_of_squares(self, tensors: Sequence[Gradient], in_groups: Sequence[bool] = ()) -> Tensor:
        """Return, for each gradient, the sum of its squares on all workers and, `in_groups`, their ranks. Float64."""

    def on_state(self, collect: Callable[[], list[np.ndarray]]) -> Callable[[], list[np.ndarray]]:
        """Return a function that calls `collect` on all workers, whatever the others are doing in this `fit()`.

        Args:
            collect: A method, whose object is not kept alive.
        """


class OwnedWeights(Protocol):
    """What a server that waits for no worker needs of the weights that it owns."""

    def step(self, gradients: list[Gradient]) -> None:
        """Update them by gradients of the owned parts, by number; `None` where there is none."""

    def read(self) -> list[np.ndarray]:
        """Return this rank's parts of the variables, by number."""

    def take(self) -> None:
        """Begin with the weights that this rank has as a worker."""

    def set_rate(self, rate: float) -> None:
        """Use the learning rate that the chief has."""


class WholeBatch(Protocol):
    """What layers, losses and metrics need of the other workers inside a step.

    Outside of a `fit()` or `evaluate()` of all workers, and with one worker, the whole batch is the worker's own.
    """

    @property
    def size(self) -> int:
        """The number of workers."""

    @property
    def context(self) -> StepContext:
        """What is known of the step that is being traced."""

    def graph(self) -> Any:
        """Return the graph that is being traced; `None` if none is."""

    def total(self, vector: Tensor, fingerprint: Tensor | None = None) -> Tensor:
        """Return the sum of all workers' `vector`, in the graph, without a gradient.

        Args:
            vector: Vector. This worker's numbers.
            fingerprint: Scalar. In an evaluation for which each worker may have all data: workers that have the same
                numbers and the same fingerprint have the same data, which counts once. Defaults to `None`: each counts.
        """

    def moments(self, mean: Tensor, variance: Tensor, count: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance and number of all workers' data together, in the graph and with their gradients.

        Args:
            mean: Vector. The mean of this worker's data, for each channel.
            variance: Vector. Their variance.
            count: Scalar. How many data these are.

        Reference: Chan, Golub, LeVeque, 1979 for the moments of a union of samples.
        """

    def count_samples(self, tensors: Sequence[Any]) -> Tensor | float:
        """Return the number of samples in a batch, given as the list of its tensors, some of which may be `None`."""

    def beginnings(self, tensors: Sequence[Any]) -> list[Tensor]:
        """Return the first elements of each tensor of numbers in a batch, in the graph: vectors of at most 4096."""


class StepProtocol(Protocol):
    """What a `fit()` needs so that all workers do the same in turn, and come out together when one has failed."""

    @property
    def exchanges(self) -> int:
        """The number of exchanges of gradients so far, of all optimizers."""

    @property
    def asked_to_end(self) -> bool:
        """Whether some worker was asked to end; all know it from the same step on."""

    @property
    def not_finite(self) -> list[int]:
        """The ranks whose losses were the first that were not finite, since the last `fit()` began; none so far."""

    @property
    def failure(self) -> Exception | None:
        """What an exchange has raised inside the graph."""

    def note_batch(self, tensors: Sequence[Tensor], exchanges: bool) -> Any:
        """Return, in a step, when these tensors of its batch have come; `None` if parts of steps are not recorded.

        Args:
            tensors: The tensors.
            exchanges: Bool. Whether the step exchanges gradients: it is told the time then, else it is told now.
        """

    def begin(self, phase: int, together: bool, may_be_whole: bool = False) -> None:
        """Start a `fit()`, an epoch or an evaluation.

        Args:
            phase: Int. See `Agreement.phase`.
            together: Bool. Whether all workers do.
            may_be_whole: Bool. Whether each worker may have all data of an evaluation. Defaults to `False`.
        """

    def meet(self, purpose: Purpose, detail: int = 0) -> Agreed:
        """Tell the others what this worker does next; return what they do. See `Agreement.meet`."""

    def ask_to_end(self) -> None:
        """Let all workers know, in their next step, that this one was asked to end."""

    def expect_finite(self) -> None:
        """Forget of which ranks the losses were not finite."""

    def same_batch(self) -> bool:
        """Return whether all workers had the same data in the first exchange since this was last called."""

    def interrupt(self) -> None:
        """Have all workers come out of what they do together, because one has failed. `shrink` must follow."""

    def shrink(self, exchanges: int) -> None:
        """Go on with the communicator's new ranks.

        Args:
            exchanges: Int. As many exchanges of gradients as count as done, on all workers.
        """

    def explained(self, on_failure: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Raise what an exchange raised inside the graph as it was, without the backend's wrapping.

        Args:
            on_failure: Called when anything but the end of the data is raised.
        """


class ModelScope(Protocol):
    """What the building of a model, and a step of it, need of the replicas of this process.

    Attributes:
        has_copies: Bool. Whether a model's variables have copies on several devices.
    """

    has_copies: bool

    @staticmethod
    def apart(function: Callable[[], T]) -> T:
        """Return `function()`, which may make variables: they are those of one device."""

    def check_model(self, model: Model) -> None:
        """Raise `ValueError` if the model cannot be trained by this replication."""

    def run(self, step: Callable[[Any], T], data: Any, samples: Tensor, model: Model) -> T:
        """Return `step(data)`, a step of `model`, for a batch of `samples`."""

    def weight_alone(self, weight: Any) -> Any:
        """Return the weight of this replica in a step outside of a `fit()`, given that of its process.

        All replicas of a process have its whole batch there, so only the first one counts.
        """

    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        """Call `apply(context, gradients, variables)`, once for all replicas of this process."""

    def rehearse(self, step: Callable[[Any], Any], iterator: Iterator, variables: Sequence[Variable]) -> None:
        """Trace `step(next(iterator))`, or run it alone, without an update, and give `variables` their values again."""

    def copies_of(self, variable: Variable) -> list[tuple[int, Variable]]:
        """Return a variable's copies in this process, each with a number that no other replica ever has."""

    def start_equal(self, variables: Sequence[Variable], root: int = 0) -> None:
        """Overwrite all workers' `variables` with those of worker `root`, by default the chief.

        Raises:
            ValueError: If a variable has no value yet, because it is made by the step that is being traced.
            DesyncError: If the workers' variables differ in number, shape or dtype.
        """

    def check_equal(self, variables: Sequence[Variable], step: int) -> np.ndarray:
        """Return the fingerprint of `variables`, or raise `DesyncError` on all workers if they differ."""
