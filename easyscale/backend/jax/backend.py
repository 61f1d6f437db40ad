"""The JAX backend."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from easyscale import keras_internals
from easyscale.backend.base import Backend, Feature
from easyscale.backend.jax import data, on_gpus, variables
from easyscale.backend.jax.between_graph import BetweenGraph
from easyscale.backend.jax.compiled_update import CompiledUpdate
from easyscale.backend.jax.host_calls import HostCalls, is_tracing
from easyscale.backend.jax.keras_steps import KerasSteps
from easyscale.backend.jax.tensors import ArrayTensors
from easyscale.communicator import Communicator
from easyscale.layout.specs import Variable

__all__ = ["BACKEND"]


class Jax(Backend):
    """JAX, where a step is compiled as a function of the values of variables."""

    name, title = "jax", "JAX"
    tensors = ArrayTensors()
    steps = KerasSteps()
    exchanges_in_steps = False
    remedies: ClassVar[Mapping[Feature, str]] = {
        Feature.IN_GRAPH: "Use 'between_graph'",
        Feature.PIPELINE: "Leave `model_parallel` out",
    }

    def __init__(self) -> None:
        keras_internals.unstack_batches()

    def computes_on_gpus(self) -> bool:
        return on_gpus.is_gpu()

    def host_calls(self) -> HostCalls:
        return HostCalls()

    def replicas(self, name: str) -> type[BetweenGraph]:
        if name == "in_graph":
            self.require(Feature.IN_GRAPH)
        return BetweenGraph

    def compiled_update(self, communicator: Communicator, has_copies: bool) -> CompiledUpdate:
        return CompiledUpdate()

    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def view(self, variable: Variable) -> np.ndarray:
        return variables.view_of(variable)

    def assign(self, variable: Variable, value: Any) -> None:
        variables.assign(variable, value)

    def sums_of_squares(self, gradients: Sequence[Any]) -> Any:
        return jnp.stack([jnp.sum(jnp.square(gradient.astype("float32"))) for gradient in gradients])

    def scaled(self, gradient: Any, factor: Any) -> Any:
        return gradient * factor

    def time_when(self, tensors: Sequence[Any]) -> float | None:
        return None if is_tracing() else super().time_when(tensors)

    def random_state(self) -> list:
        return []  # JAX has no global generator: all generators are variables of layers

    def set_random_state(self, state: list) -> None:
        """Do nothing: there is no state."""

    def differ(self, communicator: Communicator) -> None:
        """Do nothing: each layer draws from its own generator, a variable."""

    def agree_on_random_state(self, communicator: Communicator) -> None:
        """Do nothing, as in `differ`."""

    def give_iterators(self, epoch_iterator: Any) -> None:
        data.give_iterators(epoch_iterator)

    def go_on(self, iterator: Iterator, passes: int, order: Any) -> None:
        if isinstance(iterator, data.Batches):
            iterator.go_on(order)

    def take_out_chance(self, on_shuffle: Callable[[], None]) -> None:
        jax.config.update("jax_enable_x64", True)

    def are_rows(self, tensors: Sequence[Any]) -> bool:
        return bool(tensors) and all(getattr(tensor, "ndim", 0) for tensor in tensors)


BACKEND = Jax()
