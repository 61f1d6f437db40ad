"""What EasyScale asks of the framework in whose tensors a model is."""

import abc
import enum
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from easyscale.backend.keras_steps import KerasSteps
from easyscale.communicator import Communicator
from easyscale.keras_internals import begin_pass, has_value
from easyscale.layout.specs import Spec, Variable

__all__ = ["BackwardPass", "Backend", "CompiledUpdate", "Feature", "HostCalls", "StagePasses", "Tensors"]


class Feature(enum.Enum):
    """What not every backend has, as a user asks for it. `docs/backends.md` has a row for each."""

    IN_GRAPH = "replication='in_graph'"
    PIPELINE = "`model_parallel`"


class HostCalls(Protocol):
    """The calls of Python from the steps of one communicator's optimizers, made in one order on all ranks."""

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
        stay: int = 0,
    ) -> list[Any]:
        """Call `function` with NumPy arrays; return the tensors of what it returns.

        In a step on a CPU nothing is copied: an array that comes is a view of a tensor, which must neither be written
        to nor kept, and one that goes, if it is aligned to 64 bytes, is the tensor's memory from then on. On a GPU
        each way is a copy.

        Args:
            function: Function. Takes an array for each input, and returns a list of arrays; any value for no `results`.
            inputs: Tensors, variables, or numbers, of which a float travels as a float64.
            results: Shape and dtype of each array that it returns; `None` stands for a length that may vary.
            stay: Int. So many of the last inputs come, if they are on a GPU, as arrays of CuPy's there, and such an
                array that is returned is a tensor there without a copy. Only where `Backend.computes_on_gpus`. Defaults
                to 0.
        """


class CompiledUpdate(Protocol):
    """The update of weights, compiled if the framework has such, which must round alike on all workers."""

    def __call__(
        self,
        apply: Callable[[list, list], None],
        gradients: Sequence[Any],
        variables: Sequence[Variable],
        compiles: bool = False,
    ) -> None:
        """Call `apply(gradients, variables)`, which may be compiled with `compiles`. Some gradients may be `None`."""

    def forget(self) -> None:
        """Compile all anew: what it calls has changed."""


class BackwardPass(Protocol):
    """What tells of gradients while a backward pass makes them, where that is no graph which has calls in it."""

    def reached(self, loss: Any, variables: Sequence[Variable]) -> list[bool]:
        """Return, for each variable, whether the backward pass from `loss` makes a gradient by it."""

    def watch(self, variables: Mapping[int, Variable], tell: Callable[[int, Any], None]) -> Callable[[], None]:
        """From now on call `tell(number, gradient)` for each that is made; return a function that ends this."""

    def copies(self, values: Sequence[Any]) -> Callable[[], list[np.ndarray]]:
        """Begin to copy values from a GPU; return a function, for any thread, that returns arrays when they are there.

        On a CPU nothing is copied: the arrays are views, which must not be written to.
        """


class Tensors(abc.ABC):
    """What the exchange of a step's gradients does with tensors.

    The gradient of an embedding may be some rows of a matrix, in which a row may come several times. A framework that
    has no such gradients leaves the methods for rows as they are here.
    """

    @abc.abstractmethod
    def whole(self, value: Any) -> Any:
        """Return a gradient, or a variable, as a tensor in which no rows are left out."""

    @abc.abstractmethod
    def dtype_of(self, tensor: Any) -> np.dtype:
        """Return the dtype of a gradient as NumPy knows it."""

    @abc.abstractmethod
    def zeros(self, spec: Spec) -> Any:
        """Return a tensor of zeros."""

    @abc.abstractmethod
    def part_of(self, gradient: Any, part: slice) -> Any:
        """Return the part of a flat gradient; `None` of `None`."""

    @abc.abstractmethod
    def nan_unless_finite(self, weight: Any, tensors: Sequence[Any]) -> Any:
        """Return a number if all elements of all tensors are finite, else NaN."""

    @abc.abstractmethod
    def if_true(self, condition: Any, act: Callable[[], None]) -> None:
        """Call `act()`, which changes variables, in the steps in which a tensor is true."""

    def is_rows(self, gradient: Any) -> bool:
        """Return whether a gradient is some rows of a matrix."""
        return False

    def values_and_indices(self, rows: Any) -> tuple[Any, Any]:
        """Return the rows, and the int64 numbers that they have in the matrix."""
        raise NotImplementedError

    def rows(self, values: Any, indices: Any, shape: Sequence[int]) -> Any:
        """Return the gradient by a matrix of this shape of which these are the rows."""
        raise NotImplementedError

    def no_rows(self, spec: Spec) -> Any:
        """Return the gradient by a matrix of which there are no rows."""
        raise NotImplementedError


class StagePasses(abc.ABC):
    """The passes of one stage of a pipeline. What a micro-batch leaves for its backward pass is kept by its number."""

    @abc.abstractmethod
    def trace(self) -> None:
        """Have `run` called now, and not in the first pass, if it is called once for all passes and not in each."""

    @abc.abstractmethod
    def forward(self, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for a micro-batch's inputs. Arrays that were given must not be written to afterwards."""

    @abc.abstractmethod
    def backward(self, number: int, gradients: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """Return the gradients by the watched inputs, and add those by the variables to what `take` returns.

        Args:
            number: Int. That of a micro-batch whose forward pass was made.
            gradients: The gradient by each output; `None` for one that has none.
        """

    @abc.abstractmethod
    def take(self, whole: Collection[int] = ()) -> list[Any]:
        """Return the sums of all gradients since the last call, one for each variable: zeros where there were none.

        Args:
            whole: The numbers of the variables whose gradients must not be some of their rows. Defaults to none.
        """


class Backend(abc.ABC):
    """A framework's tensors, as far as EasyScale has to know them. What is NumPy, all backends share: `step/`.

    A new one is a folder of this package with the name that Keras has for it, and the files that `tensorflow/` has:
    `backend.py`, whose `BACKEND` is an object of a subclass of this; `host_calls`, `variables`, `tensors`,
    `compiled_update`, `whole_batch`, `between_graph`. In-graph replication is TensorFlow's own.

    Attributes:
        name: String. Keras's name for it.
        tensors: `Tensors`.
        steps: `KerasSteps`.
        remedies: Dict. From each `Feature` that it does not have to what the user can do.
        end_of_data: The exceptions by which a step says that its data have ended.
        exchanges_in_steps: Bool. Whether workers meet inside of what `jit_compile` compiles.
        backward_pass: `BackwardPass`; `None` where steps are graphs, in which what a call waits for is its inputs.
    """

    name: ClassVar[str]
    tensors: ClassVar[Tensors]
    steps: ClassVar[KerasSteps] = KerasSteps()
    remedies: ClassVar[Mapping[Feature, str]] = {}
    end_of_data: ClassVar[tuple[type[BaseException], ...]] = (StopIteration,)
    exchanges_in_steps: ClassVar[bool] = True
    backward_pass: ClassVar[BackwardPass | None] = None

    def advice(self, optimizers: Sequence[Any]) -> str | None:
        """Return what would have training by `DistributedOptimizer`s go faster; `None` if nothing is known."""
        return None

    def computes_on_gpus(self) -> bool:
        """Return whether tensors are on a GPU, and `HostCalls` can leave them there."""
        return False

    def require(self, feature: Feature) -> None:
        """Raise `ValueError` if it does not have this."""
        if feature in self.remedies:
            raise self.missing(feature)

    def missing(self, feature: Feature) -> ValueError:
        """Return what is raised where a user asks for what it does not have."""
        return ValueError(
            f"{feature.value} needs another backend of Keras. Received: KERAS_BACKEND={self.name}. "
            f"{self.remedies[feature]}, or set KERAS_BACKEND=tensorflow"
        )

    # Steps

    @abc.abstractmethod
    def host_calls(self) -> HostCalls:
        """Return what calls Python from steps: one for each communicator."""

    @abc.abstractmethod
    def replicas(self, name: str) -> Any:
        """Return the class of a kind of replication, such as `"between_graph"`."""

    @abc.abstractmethod
    def compiled_update(self, communicator: Communicator, has_copies: bool) -> CompiledUpdate:
        """Return the `CompiledUpdate` of one optimizer. Compiling pays where the update is bound by memory."""

    @abc.abstractmethod
    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does what `function` does with tensors, as a graph, if the framework has such."""

    def stage_passes(
        self,
        run: Callable[[list], list],
        inputs: Sequence[tuple[Sequence[int | None], np.dtype]],
        watched: Sequence[int],
        variables: Sequence[Variable],
    ) -> StagePasses:
        """Return the passes of one stage of a pipeline.

        Args:
            run: Function. Takes the list of input tensors and returns the list of outputs.
            inputs: Shape and dtype of each input; `None` stands for a length that may vary.
            watched: The numbers of the inputs by which there is a gradient.
            variables: The variables that are trained.
        """
        raise self.missing(Feature.PIPELINE)

    # Variables

    def has_value(self, variable: Variable) -> bool:
        """Return whether a variable has a value already."""
        return has_value(variable)

    @abc.abstractmethod
    def view(self, variable: Variable) -> np.ndarray:
        """Return a variable's value, which must not be written to, and stays what it is when the variable changes.

        Without a copy where a variable that changes has other memory then; TensorFlow's do on a CPU, but for types that
        Python's buffers do not know, such as bfloat16.
        """

    @abc.abstractmethod
    def assign(self, variable: Variable, value: Any) -> None:
        """Give a variable a tensor of as many elements, in a step. TensorFlow does not copy what a call returned."""

    def hold(self, variable: Variable, value: np.ndarray | None) -> None:
        """Give a variable, also one of the framework's own, a value, or none and no memory until it is given one."""
        raise self.missing(Feature.PIPELINE)

    # Gradients, which are tensors or, of an embedding, some rows

    @abc.abstractmethod
    def sums_of_squares(self, gradients: Sequence[Any]) -> Any:
        """Return a float64 tensor: for each gradient the sum of its squares."""

    @abc.abstractmethod
    def scaled(self, gradient: Any, factor: Any) -> Any:
        """Return a gradient times a number; rows stay rows, also where the same row comes several times."""

    def scale_sums(self, samples: Callable[[], Any], factor: Callable[[], Any]) -> None:
        """Scale the gradients of losses with a row for each of `samples()` by `factor()`, unless it returns `None`.

        Only TensorFlow differentiates a loss with one value per sample, as their sum. The others refuse it.
        """
        return None

    def time_when(self, tensors: Sequence[Any]) -> Any:
        """Return the seconds since 1970 at which tensors are there, in a step: a number, or a tensor of float64."""
        return time.time()

    # Random numbers

    @abc.abstractmethod
    def random_state(self) -> list:
        """Return the state of the framework's own generator, for JSON."""

    @abc.abstractmethod
    def set_random_state(self, state: list) -> None:
        """Go on with random numbers where `random_state` was called."""

    @abc.abstractmethod
    def differ(self, communicator: Communicator) -> None:
        """Let layers draw other random numbers than on other workers if they draw by the framework's own generator.

        All workers call this together. The chief's generator goes on as it is.
        """

    # Data of a `fit()`. Its train function takes an iterator over batches, and ends an epoch by `end_of_data`

    @abc.abstractmethod
    def give_iterators(self, epoch_iterator: Any) -> None:
        """Have Keras give each step an iterator over batches, from the next epoch of this `fit()` on."""

    def begin_pass(self, epoch_iterator: Any) -> Iterator:
        """Return an iterator over batches, of one more pass through what has been told to `give_iterators`."""
        return begin_pass(epoch_iterator)

    def end_epoch(self, iterator: Any, error: BaseException) -> None:
        """Have Keras end the epoch whose step has raised one of `end_of_data`: raise it, or see to it otherwise."""
        if not hasattr(iterator, "end_epoch"):
            raise error
        iterator.end_epoch()

    def order_of(self, iterator: Any) -> Any:
        """Return what the order of a pass through the data depends on, for JSON; `None` if nothing is known of it."""
        return iterator.order() if hasattr(iterator, "order") else None

    def go_on(self, iterator: Iterator, passes: int, order: Any) -> Iterator | None:
        """Have an iterator that was not used yet begin as one of another process did.

        Args:
            iterator: The iterator.
            passes: Int. How many passes that process had made before.
            order: What `order_of` has returned there; `None` if nothing.

        Returns:
            What has to stand in for it; `None` if it does itself.

        Raises:
            RuntimeError, TypeError, ValueError: If `order` is of something else.
        """
        return None

    def dataset_of(self, epoch_iterator: Any) -> Any:
        """Return what goes through the data of a `fit()`'s epochs, an iterable of batches; `None` if there is none."""
        return None

    # What `easyscale verify` asks for

    @abc.abstractmethod
    def take_out_chance(self, on_shuffle: Callable[[], None]) -> None:
        """From now on no data are shuffled; where they would have been, call `on_shuffle`. What is float64 stays so."""

    @abc.abstractmethod
    def are_rows(self, tensors: Sequence[Any]) -> bool:
        """Return whether all of these are tensors of numbers, with a row for each sample."""
