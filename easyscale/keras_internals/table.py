"""Private names of Keras and TensorFlow that EasyScale needs, their uses, and the versions that have them.

`python -m easyscale.keras_internals.table` reports those that are missing in the installed versions. Each private name
used in another file must have a row here; a test checks this. This module loads neither library.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

from easyscale.keras_internals.names import has, release_of

__all__ = ["TABLE", "Private", "missing_names", "needed"]

KERAS, TENSORFLOW = ("3.12", "3.16"), ("2.18", "2.22")  # the releases that have all of the names below


class Private(NamedTuple):
    """Private names of one owner, needed for one purpose.

    Attributes:
        owner: String. A module, or `module:Class`.
        names: Tuple of strings. Attributes of the owner, of its instances, or arguments of its methods.
        use: String. What they are used for.
        backend: String. The Keras backend that needs them. Defaults to `""`: all do.
        seen: Pair of strings. The first and last release tested with them. Before the first, they are not needed.
    """

    owner: str
    names: tuple[str, ...]
    use: str
    backend: str = ""
    seen: tuple[str, str] = KERAS

    @property
    def library(self) -> str:
        """The package that must have the names."""
        return self.owner.partition(".")[0].partition(":")[0]

    def missing(self) -> Iterator[str]:
        """Yield the names that the installed version lacks."""
        module, _, kind = self.owner.partition(":")
        try:
            if release_of(importlib.import_module(self.library).__version__) < release_of(self.seen[0]):
                return
            owner = importlib.import_module(module)
            owner = getattr(owner, kind) if kind else owner
        except (ImportError, AttributeError):
            yield f"{module}.{kind}" if kind else module
            return
        yield from (f"{kind or module}.{name}" for name in self.names if not has(owner, name))


_TRAINERS, _BACKEND = "keras.src.trainers", "keras.src.backend"
_TORCH = f"{_BACKEND}.torch.optimizers.torch_"
_DISTRIBUTE, _FUNCTION = "tensorflow.python.distribute", "tensorflow.python.eager.polymorphic_function"
_STEPS_OF_OPTIMIZERS = (
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
)

TABLE = (
    # A model in its fit()
    Private("keras:Model", ("_flatten_layers",), "the layers of a model, also of a layer that is a trainer"),
    Private("keras:Model", ("_initial_epoch",), "the epoch that `BackupAndRestore` has a fit() begin with"),
    Private("keras:Model", ("_get_metrics_result_or_logs",), "logs on their way to the callbacks"),
    Private("keras:Model", ("_use_cached_eval_dataset",), "whether fit() has called evaluate()"),
    Private("keras:Model", ("_compile_loss", "_compile_metrics"), "loss and metrics of a pipeline's last stage"),
    Private(f"{_TRAINERS}.compile_utils:CompileLoss", ("_flat_losses",), "the loss of an output whose layer is split"),
    Private("keras:Model", ("_distribute_strategy",), "the strategy in which a model was built", "tensorflow"),
    Private("keras:Model", ("_jax_state_synced",), "variables that keep their values in a fit()", "jax"),
    Private("keras:Model", ("_update_metrics_variables",), "the metrics of a step that is parted", "jax"),
    Private(f"{_TRAINERS}.data_adapters.array_slicing", ("train_validation_split",), "`validation_split` of all data"),
    # Iteration over the data of a fit()
    Private(
        f"{_TRAINERS}.epoch_iterator:EpochIterator",
        ("_current_iterator", "_epoch_iterator", "_num_batches", "_steps_seen", "catch_stop_iteration"),
        "the position in the data, and the end of an epoch that a worker has no data for",
    ),
    Private(f"{_TRAINERS}.epoch_iterator:EpochIterator", ("_get_iterator",), "a pass through the data"),
    Private(f"{_BACKEND}.jax.trainer:JAXEpochIterator", ("_get_iterator",), "batches that are not stacked", "jax"),
    Private(
        f"{_BACKEND}.tensorflow.trainer:TFEpochIterator",
        ("_distributed_dataset", "_get_iterator"),
        "the dataset of a pass, whose tuning would hold up its end",
        "tensorflow",
    ),
    Private(
        f"{_TRAINERS}.data_adapters.array_data_adapter:ArrayDataAdapter",
        ("_epoch",),
        "the order of a pass, behind a checkpoint",
        seen=("3.16", "3.16"),
    ),
    # Layers and their graph
    Private("keras.layers:BatchNormalization", ("_moments",), "moments of the batches of all workers"),
    Private("keras.layers:Layer", ("_get_own_losses", "_losses"), "what layers add to the loss"),
    Private("keras:Function", ("_nodes_by_depth",), "the order of the layers of a pipeline"),
    Private("keras:Sequential", ("_functional",), "the graph of a Sequential model"),
    Private(
        "keras.src.models.functional:Functional",
        ("_outputs_struct", "_standardize_inputs"),
        "what a graph is called with",
    ),
    # Losses and variables
    Private(
        "keras.src.losses.loss",
        (
            "apply_mask",
            "reduce_weighted_values",
            "scale_loss_for_distribution",
            "unscale_loss_for_distribution",
        ),
        "losses that are divided by the weights of all workers",
    ),
    Private("keras:Variable", ("_shape", "_value"), "a variable in memory that ranks share"),
    Private(
        f"{_BACKEND}:Variable",
        ("_direct_assign", "_initialize_with_initializer", "_maybe_autocast"),
        "variables that get their values later",
    ),
    Private(f"{_BACKEND}.common.stateless_scope", ("in_stateless_scope",), "variables that get their values later"),
    Private("keras.src.saving.saving_lib", ("is_memory_sufficient",), "a file that is written piece by piece"),
    Private(f"{_BACKEND}.common.dtypes", ("BIT64_TO_BIT32_DTYPE",), "`easyscale verify` in float64"),
    # Optimizers
    Private(
        "keras.optimizers:Optimizer",
        ("_iterations", "_learning_rate", "_tracker", "_trainable_variables", "_variables"),
        "an optimizer of a part of the weights, which counts and learns by another's variables",
    ),
    Private("keras.optimizers:Optimizer", ("_accumulated_gradients",), "gradients that travel when they are due"),
    Private(
        "keras.optimizers:Optimizer",
        ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern", "_use_weight_decay", "_var_key"),
        "weights that do not decay",
    ),
    Private("keras.optimizers:Optimizer", _STEPS_OF_OPTIMIZERS, "an optimizer's steps on each device", "tensorflow"),
    Private(
        "keras.src.optimizers.base_optimizer:BaseOptimizer",
        _STEPS_OF_OPTIMIZERS,
        "an optimizer's steps on each device",
        "tensorflow",
    ),
    Private(
        "keras.src.optimizers.base_optimizer:BaseOptimizer",
        ("_backend_maybe_overwrite_model_variables",),
        "an optimizer's steps on each device",
        "tensorflow",
        ("3.16", "3.16"),
    ),
    Private(
        f"{_BACKEND}.tensorflow.optimizer:TFOptimizer",
        ("_distribution_strategy",),
        "an optimizer's steps on each device",
        "tensorflow",
    ),
    Private(
        f"{_TORCH}adam:Adam",
        ("_momentums", "_parallel_update_step", "_velocities", "_velocity_hats"),
        "an update in one pass over memory",
        "torch",
    ),
    Private(f"{_TORCH}sgd:SGD", ("_parallel_update_step", "momentums"), "an update in one pass over memory", "torch"),
    # Callbacks
    Private("keras.callbacks:ModelCheckpoint", ("_set_monitor_op",), "the best value, of another process's epochs"),
    Private("keras.callbacks:TensorBoard", ("_global_train_batch",), "steps that another process has made"),
    # TensorFlow
    Private(
        f"{_DISTRIBUTE}.distribute_lib",
        ("_get_default_replica_mode", "_pop_per_thread_mode", "_push_per_thread_mode"),
        "what stands outside of any strategy",
        "tensorflow",
        TENSORFLOW,
    ),
    Private(f"{_DISTRIBUTE}.distribute_utils", ("regroup",), "values of several devices", "tensorflow", TENSORFLOW),
    Private(f"{_DISTRIBUTE}.values", ("Mirrored", "PerReplica"), "values of several devices", "tensorflow", TENSORFLOW),
    Private(
        f"{_FUNCTION}.concrete_function:ConcreteFunction",
        ("_delayed_rewrite_functions", "_inference_function"),
        "the passes of a pipeline's stage, without a tape",
        "tensorflow",
        TENSORFLOW,
    ),
    Private(
        f"{_FUNCTION}.concrete_function:_DelayedRewriteGradientFunctions",
        ("forward_backward",),
        "the passes of a pipeline's stage, without a tape",
        "tensorflow",
        TENSORFLOW,
    ),
    Private(
        f"{_FUNCTION}.atomic_function:AtomicFunction",
        ("call_flat",),
        "the passes of a pipeline's stage, without a tape",
        "tensorflow",
        TENSORFLOW,
    ),
)

# Private attributes of `tf.data.Dataset` and its iterators are checked on instances, by `models.require_datasets`.


def needed(backend: str, library: str) -> list[Private]:
    """Return the rows of a library that a Keras backend needs."""
    return [row for row in TABLE if row.library == library and row.backend in ("", backend)]


def missing_names(backend: str, library: str = "keras") -> list[str]:
    """Return the private names that the installed version of a library lacks."""
    return [name for row in needed(backend, library) for name in row.missing()]


def main() -> int:
    """Print the number of names, and the missing ones; return the exit code."""
    backend = importlib.import_module("keras").backend.backend()
    lost = 0
    for library in ("keras", *(["tensorflow"] if backend == "tensorflow" else [])):
        version, rows = importlib.import_module(library).__version__, needed(backend, library)
        gone = missing_names(backend, library)
        print(f"{library} {version}: {sum(len(row.names) for row in rows)} private names, {len(gone)} missing", *gone)
        lost += len(gone)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
