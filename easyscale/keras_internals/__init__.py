"""Private names of Keras and TensorFlow, each wrapped in a function that describes it.

models         a model: layers and their graph; datasets, callbacks
masks          the tensors that have masks when layers are called
epochs         iteration over the data of a `fit()`
optimization   losses, variables and optimizers
deferral       variables that are initialized later
names          checks that a library has such names
table          all of these names, their uses, and the versions in which they were tested

Other versions may have other names. `check` reports missing ones before any is used. These modules load neither
library.
"""

import functools
import importlib

from easyscale import versions
from easyscale.keras_internals import models, table
from easyscale.keras_internals.deferral import in_stateless_scope, initialize, initialized_by, on_disk
from easyscale.keras_internals.epochs import (
    add_steps_of_pass,
    another_iterator,
    batch_by_batch,
    batches_of,
    begin_pass,
    dataset_of,
    end_epoch,
    has_ended,
    order_of_shuffling,
    replace_datasets,
    replace_iterators,
    set_batches,
    set_order_of_shuffling,
    shuffled_by,
    steps_of_pass,
    unstack_batches,
)
from easyscale.keras_internals.masks import mask_of, set_mask
from easyscale.keras_internals.models import (
    LOGS,
    OF_FIT,
    Graph,
    added_losses,
    batch_size_of,
    build_compiled,
    calls_between,
    compiled_loss,
    count_in_metrics,
    dataset_of_iterator,
    graph_of,
    hold_losses,
    improves,
    initial_epoch,
    inputs_of,
    keeps_batches,
    keeps_count,
    last_batch_of,
    layers_of,
    leave_state_in,
    replace_moments,
    replace_validation_split,
    set_initial_epoch,
    set_step,
    shuffle_seeds,
    shuffles,
    standardized,
    strategy_of,
    tensors_of,
    with_training,
)
from easyscale.keras_internals.names import missing, release_of
from easyscale.keras_internals.optimization import (
    accumulated_gradients,
    apply_mask,
    copy_exclusions,
    count_alike,
    counter_of,
    excluded_from_weight_decay,
    has_value,
    keep_float64,
    learning_rate_of,
    native_of,
    replace_in_losses,
    replace_parallel_step,
    set_native,
    slots_of,
    take_general_steps,
    trained_by,
)

__all__ = [
    "LOGS",
    "OF_FIT",
    "Graph",
    "accumulated_gradients",
    "add_steps_of_pass",
    "added_losses",
    "another_iterator",
    "apply_mask",
    "batch_by_batch",
    "batch_size_of",
    "batches_of",
    "begin_pass",
    "build_compiled",
    "calls_between",
    "check",
    "compiled_loss",
    "copy_exclusions",
    "count_in_metrics",
    "count_alike",
    "counter_of",
    "dataset_of",
    "dataset_of_iterator",
    "end_epoch",
    "excluded_from_weight_decay",
    "graph_of",
    "has_ended",
    "has_value",
    "hold_losses",
    "improves",
    "in_stateless_scope",
    "initial_epoch",
    "initialize",
    "initialized_by",
    "inputs_of",
    "keep_float64",
    "keeps_batches",
    "keeps_count",
    "last_batch_of",
    "layers_of",
    "learning_rate_of",
    "leave_state_in",
    "mask_of",
    "native_of",
    "on_disk",
    "order_of_shuffling",
    "release_of",
    "replace_datasets",
    "replace_in_losses",
    "replace_iterators",
    "replace_moments",
    "replace_parallel_step",
    "replace_validation_split",
    "require",
    "set_batches",
    "set_initial_epoch",
    "set_mask",
    "set_native",
    "set_order_of_shuffling",
    "set_step",
    "shuffled_by",
    "shuffle_seeds",
    "shuffles",
    "slots_of",
    "standardized",
    "steps_of_pass",
    "strategy_of",
    "tensors_of",
    "take_general_steps",
    "trained_by",
    "unstack_batches",
    "with_training",
]


@functools.cache
def check() -> None:
    """Raise `EasyScaleError` if the installed Keras or TensorFlow is known not to work, or lacks a name."""
    versions.check(importlib.import_module("keras").backend.backend())
    require("keras")
    models.require_datasets()


def require(library: str) -> None:
    """Raise `EasyScaleError` if a library lacks private names of the `TABLE` that Keras's backend needs."""
    if lost := table.missing_names(importlib.import_module("keras").backend.backend(), library):
        raise missing(library, *lost)
