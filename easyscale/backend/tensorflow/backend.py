"""The TensorFlow backend."""

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from easyscale import keras_internals, onednn
from easyscale.backend.base import Backend
from easyscale.backend.tensorflow import data, rows, unreduced_losses, variables
from easyscale.backend.tensorflow.compiled_update import CompiledUpdate
from easyscale.backend.tensorflow.host_calls import HostCalls
from easyscale.backend.tensorflow.stages import Passes
from easyscale.backend.tensorflow.tensors import TensorsOfGraphs
from easyscale.communicator import Communicator
from easyscale.layout.specs import Variable

__all__ = ["BACKEND"]

# Maps a kind of replication to its module and class.
_REPLICAS = {"between_graph": ("between_graph", "BetweenGraph"), "in_graph": ("in_graph.in_graph", "InGraph")}


class TensorFlow(Backend):
    """TensorFlow, where steps are graphs, traced once."""

    name, title = "tensorflow", "TensorFlow"
    tensors = TensorsOfGraphs()
    end_of_data = (StopIteration, tf.errors.OutOfRangeError)

    def __init__(self) -> None:
        keras_internals.replace_datasets(data.end_at_once)

    def describe(self) -> str:
        return self.title if tf.config.list_logical_devices("GPU") else f"{self.title}, {onednn.describe(os.environ)}"

    def advice(self, optimizers: Sequence[Any]) -> str | None:
        is_slow = not tf.config.list_logical_devices("GPU") and onednn.are_off(os.environ)
        return onednn.ADVICE if is_slow else None

    def host_calls(self) -> HostCalls:
        return HostCalls()

    def replicas(self, name: str) -> Any:
        module, kind = _REPLICAS[name]
        return getattr(importlib.import_module(f"{__package__}.{module}"), kind)

    def compiled_update(self, communicator: Communicator, has_copies: bool) -> CompiledUpdate:
        return CompiledUpdate(communicator, has_copies)

    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # `partial`: TensorFlow would count the traces of a method of several objects together, and warn of many.
        return tf.function(functools.partial(function), autograph=False, reduce_retracing=True)

    def stage_passes(
        self,
        run: Callable[[list], list],
        inputs: Sequence[tuple[Sequence[int | None], np.dtype]],
        watched: Sequence[int],
        variables: Sequence[Variable],
    ) -> Passes:
        return Passes(run, inputs, watched, variables)

    def has_value(self, variable: Variable) -> bool:
        return keras_internals.has_value(variable) and bool(variables.native_of(variable).is_initialized())

    def view(self, variable: Variable) -> np.ndarray:
        return variables.view_of(variable)

    def assign(self, variable: Variable, value: Any) -> None:
        variables.assign(variable, value)

    def hold(self, variable: Variable, value: np.ndarray | None) -> None:
        variables.hold(variable, value)

    def sums_of_squares(self, gradients: Sequence[Any]) -> tf.Tensor:
        return rows.sums_of_squares(gradients)

    def scaled(self, gradient: Any, factor: Any) -> Any:
        return rows.scaled(gradient, factor)

    def scale_sums(self, samples: Callable[[], Any], factor: Callable[[], Any]) -> None:
        unreduced_losses.scale(samples, factor)

    def time_when(self, tensors: Sequence[Any]) -> tf.Tensor:
        with tf.control_dependencies(list(tensors)):
            return tf.timestamp()

    def random_state(self) -> list:
        return tf.random.get_global_generator().state.numpy().tolist()

    def set_random_state(self, state: list) -> None:
        tf.random.get_global_generator().state.assign(state)

    def differ(self, communicator: Communicator) -> None:
        """Do nothing: each layer has its own generator."""

    def agree_on_random_state(self, communicator: Communicator) -> None:
        """Do nothing, as in `differ`."""

    def give_iterators(self, epoch_iterator: Any) -> None:
        """Do nothing: Keras already passes iterators."""

    def go_on(self, iterator: Iterator, passes: int, order: Any) -> Iterator | None:
        return data.go_on(iterator, passes)

    def dataset_of(self, epoch_iterator: Any) -> Any:
        return keras_internals.dataset_of(epoch_iterator)

    def are_rows(self, tensors: Sequence[Any]) -> bool:
        return data.are_rows(tensors)

    def take_out_chance(self, on_shuffle: Callable[[], None]) -> None:
        data.keep_in_order(on_shuffle)


BACKEND = TensorFlow()
