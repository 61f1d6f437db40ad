"""The interface between EasyScale and a framework."""

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
    """Features that some backends lack, as a user requests them. `docs/backends.md` has a row for each."""

    IN_GRAPH = "replication='in_graph'"
    PIPELINE = "`model_parallel`"


class HostCalls(Protocol):
    """Calls from steps into Python, for all optimizers of one communicator, in the same order on all ranks."""

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
        stay: int = 0,
    ) -> list[Any]:
        """Call `function` with NumPy arrays; return its results as tensors.

        In a step on a CPU nothing is copied: an input array is a view of a tensor, which must be neither written to nor
        kept, and a result that is aligned to 64 bytes becomes the tensor's memory. On a GPU both directions are copies.

        Args:
            function: Function. Takes an array for each input, and returns a list of arrays; any value if `results` is
                empty.
            inputs: Tensors, variables, or numbers. A float is passed as a float64.
            results: Shape and dtype of each returned array; `None` stands for a length that may vary.
            stay: Int. Number of trailing inputs that stay on the GPU, if they are there. They arrive as CuPy arrays,
                and a CuPy array that is returned becomes a tensor without a copy. Only if `Backend.computes_on_gpus`.
                Defaults to 0.
        """


class CompiledUpdate(Protocol):
    """The update of weights, compiled if the framework can. It must round the same way on all workers."""

    def __call__(
        self,
        apply: Callable[[list, list], None],
        gradients: Sequence[Any],
        variables: Sequence[Variable],
        compiles: bool = False,
    ) -> None:
        """Call `apply(gradients, variables)`; `compiles` allows compilation. Some gradients may be `None`."""

    def forget(self) -> None:
        """Discard everything compiled, because code that it calls has changed."""


class BackwardPass(Protocol):
    """Per-gradient hooks for eager autograd."""

    def reached(self, loss: Any, variables: Sequence[Variable]) -> list[bool]:
        """Return, for each variable, whether the backward pass from `loss` computes its gradient."""

    def watch(self, variables: Mapping[int, Variable], tell: Callable[[int, Any], None]) -> Callable[[], None]:
        """Call `tell(number, gradient)` for each gradient from now on; return a function that stops this."""

    def copies(self, values: Sequence[Any]) -> Callable[[], list[np.ndarray]]:
        """Start copying values from a GPU; return a function, for any thread, that waits for them and returns arrays.

        On a CPU nothing is copied: the arrays are views, which must not be written to.
        """


class Tensors(abc.ABC):
    """Tensor operations for the exchange of a step's gradients.

    The gradient of an embedding may be row-sparse: some rows of a matrix, in which a row may occur several times. A
    framework without such gradients inherits the methods for rows unchanged.
    """

    @abc.abstractmethod
    def whole(self, value: Any) -> Any:
        """Return a gradient or a variable as a dense tensor."""

    @abc.abstractmethod
    def dtype_of(self, tensor: Any) -> np.dtype:
        """Return the NumPy dtype of a gradient."""

    @abc.abstractmethod
    def zeros(self, spec: Spec) -> Any:
        """Return a tensor of zeros."""

    @abc.abstractmethod
    def part_of(self, gradient: Any, part: slice) -> Any:
        """Return a slice of the flattened gradient; `None` for `None`."""

    @abc.abstractmethod
    def nan_unless_finite(self, weight: Any, tensors: Sequence[Any]) -> Any:
        """Return `weight` if all elements of all tensors are finite, else NaN."""

    @abc.abstractmethod
    def if_true(self, condition: Any, act: Callable[[], None]) -> None:
        """Call `act()`, which changes variables, in steps in which the tensor `condition` is true."""

    def is_rows(self, gradient: Any) -> bool:
        """Return whether a gradient is row-sparse."""
        return False

    def values_and_indices(self, rows: Any) -> tuple[Any, Any]:
        """Return the rows and their int64 indices in the matrix."""
        raise NotImplementedError

    def rows(self, values: Any, indices: Any, shape: Sequence[int]) -> Any:
        """Return the row-sparse gradient, for a matrix of this shape, made of these rows."""
        raise NotImplementedError

    def no_rows(self, spec: Spec) -> Any:
        """Return a row-sparse gradient without any rows."""
        raise NotImplementedError


class StagePasses(abc.ABC):
    """The passes of one pipeline stage. Data for a micro-batch's backward pass is stored under its number."""

    @abc.abstractmethod
    def trace(self) -> None:
        """Call `run` now rather than in the first pass, if the framework traces it once; otherwise do nothing."""

    @abc.abstractmethod
    def forward(self, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for a micro-batch's inputs. The input arrays must not be written to afterwards."""

    @abc.abstractmethod
    def backward(self, number: int, gradients: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """Return the gradients of the watched inputs, and add those of the variables to the result of `take`.

        Args:
            number: Int. The number of a micro-batch whose forward pass has run.
            gradients: The gradient with respect to each output; `None` if it has none.
        """

    @abc.abstractmethod
    def take(self, whole: Collection[int] = ()) -> list[Any]:
        """Return each variable's sum of gradients since the last call: zeros if there were none.

        Args:
            whole: The numbers of the variables whose gradients must be dense. Defaults to none.
        """


class Backend(abc.ABC):
    """The operations that EasyScale needs from a framework. NumPy code is shared by all backends, in `step/`.

    A new backend is a subpackage named as in Keras, with the same files as `tensorflow/`: `backend.py`, whose `BACKEND`
    is an instance of a subclass of this; `host_calls`, `variables`, `tensors`, `compiled_update`, `whole_batch`,
    `between_graph`. In-graph replication is specific to TensorFlow.

    Attributes:
        name: String. Keras's name for it.
        title: String. Its name in text for people.
        tensors: `Tensors`.
        steps: `KerasSteps`.
        remedies: Dict. Maps each `Feature` that it lacks to what the user can do instead.
        end_of_data: The exceptions that a step raises at the end of its data.
        exchanges_in_steps: Bool. Whether workers communicate inside code that `jit_compile` compiles.
        backward_pass: `BackwardPass`; `None` if steps are graphs, in which a host call waits for its inputs only.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    tensors: ClassVar[Tensors]
    steps: ClassVar[KerasSteps] = KerasSteps()
    remedies: ClassVar[Mapping[Feature, str]] = {}
    end_of_data: ClassVar[tuple[type[BaseException], ...]] = (StopIteration,)
    exchanges_in_steps: ClassVar[bool] = True
    backward_pass: ClassVar[BackwardPass | None] = None

    def describe(self) -> str:
        """Return its title, and what else of it changes speed or rounding."""
        return self.title

    def advice(self, optimizers: Sequence[Any]) -> str | None:
        """Return a suggestion that would speed up training with `DistributedOptimizer`s; `None` if there is none."""
        return None

    def computes_on_gpus(self) -> bool:
        """Return whether tensors are on a GPU and `HostCalls` can leave them there."""
        return False

    def require(self, feature: Feature) -> None:
        """Raise `ValueError` if the backend lacks a feature."""
        if feature in self.remedies:
            raise self.missing(feature)

    def missing(self, feature: Feature) -> ValueError:
        """Return the error for a requested feature that the backend lacks."""
        return ValueError(
            f"{feature.value} needs another backend of Keras. Received: KERAS_BACKEND={self.name}. "
            f"{self.remedies[feature]}, or set KERAS_BACKEND=tensorflow"
        )

    # Steps

    @abc.abstractmethod
    def host_calls(self) -> HostCalls:
        """Return a new `HostCalls`, for one communicator."""

    @abc.abstractmethod
    def replicas(self, name: str) -> Any:
        """Return the class for a kind of replication, such as `"between_graph"`."""

    @abc.abstractmethod
    def compiled_update(self, communicator: Communicator, has_copies: bool) -> CompiledUpdate:
        """Return the `CompiledUpdate` of one optimizer. Compiling pays if the update is memory-bound."""

    @abc.abstractmethod
    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as a graph function, if the framework has graphs."""

    def stage_passes(
        self,
        run: Callable[[list], list],
        inputs: Sequence[tuple[Sequence[int | None], np.dtype]],
        watched: Sequence[int],
        variables: Sequence[Variable],
    ) -> StagePasses:
        """Return the passes of one pipeline stage.

        Args:
            run: Function. Takes the list of input tensors and returns the list of outputs.
            inputs: Shape and dtype of each input; `None` stands for a length that may vary.
            watched: The numbers of the inputs that need a gradient.
            variables: The trainable variables.
        """
        raise self.missing(Feature.PIPELINE)

    # Variables

    def has_value(self, variable: Variable) -> bool:
        """Return whether a variable has a value already."""
        return has_value(variable)

    @abc.abstractmethod
    def view(self, variable: Variable) -> np.ndarray:
        """Return a variable's value, which is read-only and does not change with the variable.

        It is not a copy if changed variables get new memory, as TensorFlow's do on a CPU, except for types that
        Python's buffers do not support, such as bfloat16.
        """

    @abc.abstractmethod
    def assign(self, variable: Variable, value: Any) -> None:
        """Assign a tensor of equal size, in a step. TensorFlow does not copy the result of a host call."""

    def hold(self, variable: Variable, value: np.ndarray | None) -> None:
        """Assign a value to a variable, which may be a native one. `None` frees its memory until it gets a value."""
        raise self.missing(Feature.PIPELINE)

    # Gradients, dense or row-sparse

    @abc.abstractmethod
    def sums_of_squares(self, gradients: Sequence[Any]) -> Any:
        """Return a tensor with each gradient's sum of squares: float64, but float32 on JAX."""

    @abc.abstractmethod
    def scaled(self, gradient: Any, factor: Any) -> Any:
        """Return a gradient times a number; a row-sparse one stays row-sparse, even if rows occur several times."""

    def scale_sums(self, samples: Callable[[], Any], factor: Callable[[], Any]) -> None:
        """Scale the gradients of losses with a row for each of `samples()` by `factor()`, unless that returns `None`.

        Only TensorFlow differentiates a loss with one value per sample, as their sum. The others reject such a loss.
        """
        return None

    def time_when(self, tensors: Sequence[Any]) -> Any:
        """Return the time at which tensors are ready, in a step: seconds since 1970, a number or a float64 tensor.

        `None` if only a call of Python can tell.
        """
        return time.time()

    # Random numbers

    @abc.abstractmethod
    def random_state(self) -> list:
        """Return the state of the framework's global generator, JSON-serializable."""

    @abc.abstractmethod
    def set_random_state(self, state: list) -> None:
        """Restore the state that `random_state` returned."""

    @abc.abstractmethod
    def differ(self, communicator: Communicator) -> None:
        """Make layers that draw from the framework's global generator draw different numbers on each worker.

        All workers call this together. The chief's generator stays as it is.
        """

    @abc.abstractmethod
    def agree_on_random_state(self, communicator: Communicator) -> None:
        """After `differ`, set the framework's global generator to the chief's state. All workers call this together."""

    # Data of a `fit()`. Its train function takes an iterator over batches, and raises `end_of_data` after an epoch

    @abc.abstractmethod
    def give_iterators(self, epoch_iterator: Any) -> None:
        """Have Keras pass each step an iterator over batches, from the next epoch of this `fit()` on."""

    def begin_pass(self, epoch_iterator: Any) -> Iterator:
        """Return an iterator over batches for another pass, after `give_iterators` was called."""
        return begin_pass(epoch_iterator)

    def end_epoch(self, iterator: Any, error: BaseException) -> None:
        """End Keras's epoch after its step has raised one of `end_of_data`: raise the error, or notify the iterator."""
        if not hasattr(iterator, "end_epoch"):
            raise error
        iterator.end_epoch()

    def order_of(self, iterator: Any) -> Any:
        """Return the JSON-serializable state that determines the order of a pass over the data; `None` if unknown."""
        return iterator.order() if hasattr(iterator, "order") else None

    def go_on(self, iterator: Iterator, passes: int, order: Any) -> Iterator | None:
        """Make an unused iterator start where one of another process did.

        Args:
            iterator: The iterator.
            passes: Int. Number of passes that the other process had made before.
            order: The result of `order_of` there; `None` if there is none.

        Returns:
            A replacement for the iterator; `None` if it can be used itself.

        Raises:
            RuntimeError, TypeError, ValueError: If `order` does not fit the data.
        """
        return None

    def dataset_of(self, epoch_iterator: Any) -> Any:
        """Return the iterable of batches for a `fit()`'s epochs; `None` if there is none."""
        return None

    # For `easyscale verify`

    @abc.abstractmethod
    def take_out_chance(self, on_shuffle: Callable[[], None]) -> None:
        """Disable shuffling; call `on_shuffle` where data would have been shuffled. Data in float64 stay float64."""

    @abc.abstractmethod
    def are_rows(self, tensors: Sequence[Any]) -> bool:
        """Return whether all of these are tensors of numbers with one row per sample."""
