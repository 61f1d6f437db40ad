"""What EasyScale asks of the framework in whose tensors a model is."""

import abc
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange import Exchange
from easyscale.layout.specs import Variable

__all__ = ["Backend", "HostCalls", "StagePasses"]


class HostCalls(Protocol):
    """The calls of Python from the steps of one communicator's optimizers, made in one order on all ranks."""

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
    ) -> list[Any]:
        """Call `function` with NumPy arrays; return the tensors of what it returns.

        In a step on a CPU nothing is copied: an array that comes is a view of a tensor, which must neither be written
        to nor kept, and one that goes, if it is aligned to 64 bytes, is the tensor's memory from then on. On a GPU
        each way is a copy.

        Args:
            function: Function. Takes an array for each input, and returns a list of arrays; any value for no `results`.
            inputs: Tensors, variables, or numbers, of which a float travels as a float64.
            results: Shape and dtype of each array that it returns; `None` stands for a length that may vary.
        """


class StagePasses(abc.ABC):
    """The passes of one stage of a pipeline. What a micro-batch leaves for its backward pass is kept by its number."""

    @abc.abstractmethod
    def trace(self) -> None:
        """Have `run` called, if it is called once for all passes and not in each, before the first pass."""

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
    `backend.py`, whose `BACKEND` is an object of a subclass of this; `host_calls`, `variables`, `compiled_update`,
    `gradients`, `whole_batch`, `data`, `internals`. In-graph replication is TensorFlow's own.

    Attributes:
        name: String. Keras's name for it.
        end_of_data: The exceptions by which a step says that its data have ended.
    """

    name: ClassVar[str]
    end_of_data: ClassVar[tuple[type[BaseException], ...]] = (StopIteration,)

    def advice(self) -> str | None:
        """Return what would have this process compute faster, for the user; `None` if nothing is known."""
        return None

    # Steps

    @abc.abstractmethod
    def host_calls(self) -> HostCalls:
        """Return what calls Python from steps: one for each communicator."""

    @abc.abstractmethod
    def replicas(self, name: str) -> Any:
        """Return the class of a kind of replication, such as `"between_graph"`."""

    @abc.abstractmethod
    def gradients(
        self, exchange: Exchange, shared: Any, bucket_bytes: int | None, densify: bool, fixed: bool, compiled: Any
    ) -> Any:
        """Return the `GradientSync` of one optimizer. It brings what a step has to a `GradientExchange`, and back."""

    @abc.abstractmethod
    def compiled_update(self, communicator: Communicator, has_copies: bool) -> Any:
        """Return the `CompiledUpdate` of one optimizer. Compiling pays where the update is bound by memory."""

    @abc.abstractmethod
    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does what `function` does with tensors, as a graph, if the framework has such."""

    @abc.abstractmethod
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

    # Variables

    @abc.abstractmethod
    def has_value(self, variable: Variable) -> bool:
        """Return whether a variable has a value already."""

    @abc.abstractmethod
    def view(self, variable: Variable) -> np.ndarray:
        """Return a variable's value, which must not be written to, and stays what it is when the variable changes.

        Without a copy on a CPU, but for types that Python's buffers do not know, such as bfloat16; a copy on a GPU.
        """

    @abc.abstractmethod
    def assign(self, variable: Variable, value: Any) -> None:
        """Give a variable a tensor of as many elements, in a step. What a host call returned is not copied."""

    @abc.abstractmethod
    def release(self, variable: Variable) -> None:
        """Let a variable have no value, and no memory, until `restore`: nobody uses it meanwhile."""

    @abc.abstractmethod
    def restore(self, variable: Variable, value: np.ndarray) -> None:
        """Give a variable a value of its shape again."""

    # Gradients, which are tensors or, of an embedding, some rows

    @abc.abstractmethod
    def sums_of_squares(self, gradients: Sequence[Any]) -> Any:
        """Return a float64 tensor: for each gradient the sum of its squares."""

    @abc.abstractmethod
    def scaled(self, gradient: Any, factor: Any) -> Any:
        """Return a gradient times a number; rows stay rows, also where the same row comes several times."""

    # Random numbers and data

    @abc.abstractmethod
    def random_state(self) -> list:
        """Return the state of the framework's own generator, for JSON."""

    @abc.abstractmethod
    def set_random_state(self, state: list) -> None:
        """Go on with random numbers where `random_state` was called."""

    @abc.abstractmethod
    def dataset_of(self, epoch_iterator: Any) -> Any:
        """Return what goes through the data of a `fit()`'s epochs, an iterable of batches; `None` if there is none."""

    @abc.abstractmethod
    def are_rows(self, tensors: Sequence[Any]) -> bool:
        """Return whether all of these are tensors of numbers, with a row for each sample."""

    @abc.abstractmethod
    def keep_in_order(self, on_shuffle: Callable[[], None]) -> None:
        """From now on no data are shuffled; where they would have been, call `on_shuffle`."""
