"""The PyTorch backend."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from easyscale.backend.base import Backend, Feature
from easyscale.backend.torch import data, fused, on_gpus, randomness, variables
from easyscale.backend.torch.backward_pass import WatchedPass
from easyscale.backend.torch.between_graph import BetweenGraph
from easyscale.backend.torch.compiled_update import EagerUpdate
from easyscale.backend.torch.host_calls import HostCalls
from easyscale.backend.torch.keras_steps import KerasSteps
from easyscale.backend.torch.tensors import EagerTensors
from easyscale.communicator import Communicator
from easyscale.keras_internals import begin_pass
from easyscale.layout.specs import Variable
from easyscale.step.random_state import mix
from easyscale.step.shared import Shared

__all__ = ["BACKEND"]


class Torch(Backend):
    """PyTorch, where steps are Python code, and write to variables in place."""

    name, title = "torch", "PyTorch"
    tensors = EagerTensors()
    steps = KerasSteps()
    backward_pass = WatchedPass()
    remedies: ClassVar[Mapping[Feature, str]] = {
        Feature.IN_GRAPH: "Use 'between_graph'",
        Feature.PIPELINE: "Leave `model_parallel` out",
    }

    def advice(self, optimizers: Sequence[Any]) -> str | None:
        return fused.advice([one.inner_optimizer for one in optimizers if one.workers.size > 1])

    def computes_on_gpus(self) -> bool:
        return on_gpus.device().type == "cuda"

    def host_calls(self) -> HostCalls:
        return HostCalls()

    def replicas(self, name: str) -> type[BetweenGraph]:
        if name == "in_graph":
            self.require(Feature.IN_GRAPH)
        return BetweenGraph

    def compiled_update(self, communicator: Communicator, has_copies: bool) -> EagerUpdate:
        calls = Shared.of(communicator, self).call
        return EagerUpdate(lambda: calls.rehearses)

    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.no_grad()(function)

    def view(self, variable: Variable) -> np.ndarray:
        return variables.view_of(variable)

    def assign(self, variable: Variable, value: Any) -> None:
        variables.assign(variable, value)

    def sums_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([gradient.to(torch.float64).square().sum() for gradient in gradients])

    def scaled(self, gradient: torch.Tensor, factor: Any) -> torch.Tensor:
        return gradient * factor

    def random_state(self) -> list:
        return [state.tolist() for state in randomness.states()]

    def set_random_state(self, state: list) -> None:
        randomness.set_states([torch.tensor(own, dtype=torch.uint8) for own in state])

    def differ(self, communicator: Communicator) -> None:
        state = zlib.crc32(torch.get_rng_state().numpy().tobytes())  # unseeded dropout uses this generator
        chiefs = communicator.all_gather_object(state)[0]
        if communicator.rank > 0:
            torch.manual_seed(mix(chiefs, communicator.rank))

    def agree_on_random_state(self, communicator: Communicator) -> None:
        own = self.random_state() if communicator.rank == 0 else None
        self.set_random_state(communicator.all_gather_object(own)[0])

    def give_iterators(self, epoch_iterator: Any) -> None:
        data.give_iterators(epoch_iterator)

    def begin_pass(self, epoch_iterator: Any) -> Iterator:
        return next(begin_pass(epoch_iterator))

    def go_on(self, iterator: Iterator, passes: int, order: Any) -> None:
        if isinstance(iterator, data.Batches):
            iterator.go_on(passes, order)

    def are_rows(self, tensors: Sequence[Any]) -> bool:
        return data.are_rows(tensors)

    def take_out_chance(self, on_shuffle: Callable[[], None]) -> None:
        data.keep_in_order(on_shuffle)


BACKEND = Torch()
