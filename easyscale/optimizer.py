"""An optimizer that averages gradients over workers, then applies an inner optimizer."""

import sys
from types import FrameType
from typing import Any

import keras

from easyscale import backend as backends
from easyscale import compression as compressions
from easyscale import exchange as exchanges
from easyscale import replication as replications
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.compression import Compression, Form
from easyscale.exchange import Exchange
from easyscale.keras_internals import in_stateless_scope
from easyscale.optimizers import identifiers
from easyscale.optimizers.around_another import AroundAnother
from easyscale.replication.connecting import connect
from easyscale.replication.replication import Replication
from easyscale.step.agreement import Agreed
from easyscale.step.context import StepContext
from easyscale.step.late_gather import LateGather
from easyscale.update import asked as updates
from easyscale.update import choosing
from easyscale.update.accumulated import unscaled
from easyscale.update.asked import Identifier
from easyscale.update.in_fit import UpdateInFit

__all__ = ["DistributedOptimizer"]

_ARGUMENTS = (
    "name",
    "inner_optimizer",
    "exchange",
    "replication",
    "update",
    "compression",
    "bucket_bytes",
)  # saved in the configuration


@keras.saving.register_keras_serializable(package="easyscale")
class DistributedOptimizer(AroundAnother):
    """Average the gradients over all workers, then apply them with an inner optimizer.

        g_mean = sum_r(n_r * g_r) / sum_r(n_r)        over workers r, with n_r samples each
        w, state = inner_optimizer(w, state, g_mean)

    Everything that the inner optimizer does to gradients and weights (clipping, weight decay, moving averages, loss
    scaling) applies to the average, so it has the same meaning as on one worker. With one worker nothing is exchanged.

    `easyscale.callbacks.Distribute` wraps a model's optimizer automatically. Use this class directly in a custom
    training loop, where `n_r` is 1. At the first step the trained variables and the optimizer's own are set to the
    chief's values on all workers; other variables stay as they are.

    Args:
        inner_optimizer: A `keras.optimizers.Optimizer`, or an identifier that `keras.optimizers.get` accepts.
        exchange: An argument of `easyscale.exchange.get`. Defaults to `None`: that of `easyscale launch --exchange`,
            else `"auto"`, which chooses by measuring.
        replication: String. `"between_graph"` or `"in_graph"`. Defaults to `None`: that of `easyscale launch
            --replication`, else `"between_graph"`.
        update: `"replicated"`: every worker updates all weights. `"sharded"`: in a `fit()` with `Distribute`, each
            worker updates only the weights that it owns, and holds the inner optimizer's state only for them. A custom
            inner optimizer must then make the same step on any part of a weight, and be reproducible from its
            configuration. `"local_sgd"`, `"diloco"`, `"gossip"`, or an instance, such as
            `easyscale.update.LocalSGD(every=16)`: workers step independently between rounds. Defaults to `None`:
            `"sharded"` if the inner optimizer is one of Keras's that supports it, there are at least 64 KB of weights,
            and the job is not elastic.
        compression: Compression of gradients between processes: an argument of `easyscale.compression.get`. With
            compression, `update` defaults to `"replicated"`, because weights are not compressed. Defaults to `None`:
            that of `easyscale launch --compression`, else none. `"auto"` chooses by timing the gradients.
        bucket_bytes: Int. Approximate size of the buckets in which gradients travel during the backward pass, and
            weights during the start of the next step. Defaults to `None`: one bucket within a node; between nodes, a
            size chosen by measuring.
        communicator: An argument of `easyscale.communicator.get`. Defaults to `None`.
        name: String. The optimizer's name. Defaults to `None`: that of the inner one.

    Attributes:
        is_by_hand: Bool. Whether the script created it, rather than `Distribute` or a saved configuration.

    Raises:
        ValueError: If an argument is invalid, or `update="sharded"` and the inner optimizer depends on whole weights.
        DesyncError: If workers have different exchanges, or exchange different gradients.

    Example:

    >>> optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), "ring")
    >>> model.compile(optimizer, "mse")
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str | dict,
        exchange: str | Exchange | type[Exchange] | None = None,
        replication: str | None = None,
        update: Identifier = None,
        compression: str | dict | Compression | type[Compression] | None = None,
        bucket_bytes: int | None = None,
        communicator: str | Communicator | None = None,
        name: str | None = None,
    ):
        inner_optimizer = identifiers.get(inner_optimizer)
        if isinstance(inner_optimizer, DistributedOptimizer):
            raise ValueError("`inner_optimizer` must not be a `DistributedOptimizer` itself. Pass its inner optimizer")
        asked = updates.get(update)
        choosing.check(asked, inner_optimizer, replications.check(replication))
        if bucket_bytes is not None and not (isinstance(bucket_bytes, int) and bucket_bytes > 0):
            raise ValueError(f"`bucket_bytes` must be a positive integer or `None`. Received: {bucket_bytes=}")
        backends.get()  # raises if the backend is not supported
        exchanges.check(replications.get(replication).between_processes(exchange))
        super().__init__(learning_rate=0.0, name=name or inner_optimizer.name)
        self.exchange, self.replication = exchange, replication
        self.update = update if isinstance(update, str) else asked
        self.compression = compressions.given(compression)
        self.bucket_bytes, self.communicator = bucket_bytes, communicator
        self.is_by_hand = True
        self.starts_equal = True  # copy the chief's variables at the first step, unless done elsewhere
        self.is_scaled_outside = self.is_clipped_outside = False  # by a `LossScaleOptimizer`; over stages of a pipeline
        self._replication: Replication | None = None
        self._hold(inner_optimizer)

    def _hold(self, inner_optimizer: keras.optimizers.Optimizer) -> None:
        self.inner_optimizer = inner_optimizer
        self.updates = UpdateInFit(updates.get(self.update), inner_optimizer, lambda: self.workers)
        self.forward(set(inner_optimizer.get_config()) - {*_ARGUMENTS, "learning_rate"})

    def take_inside(self, scaling: keras.optimizers.LossScaleOptimizer) -> None:
        """Move to the outside of the loss scaling that wraps this optimizer, so that it sees the average."""
        scaling.inner_optimizer = self.inner_optimizer
        self._hold(scaling)
        self.built = self.is_scaled_outside = False
        if self._replication is not None:
            self._make_local(scaling)

    def _make_local(self, optimizer: keras.optimizers.Optimizer) -> None:
        replication = replications.get(self.replication)
        replication.apart(lambda: replication.make_local(optimizer))

    @property
    def workers(self) -> Replication:
        """The `Replication` over all workers. The first access connects them, and is collective."""
        if self._replication is None:
            update = None if self.update is None else str(self.update)
            how = self.exchange, self.replication, update, self.bucket_bytes, self.communicator
            adds_up = _adds_up(self.inner_optimizer) and not self.is_clipped_outside
            self._replication = connect(*how, adds_up, _form_for(self.inner_optimizer, self.compression))
            self._make_local(self.inner_optimizer)
        return self._replication

    def build(self, variables: list) -> None:
        self.is_scaled_outside = _is_called_by(keras.optimizers.LossScaleOptimizer)
        if not self.inner_optimizer.built:
            replication = replications.get(self.replication)
            if replication.has_copies:
                _ = self.workers  # connecting makes the inner optimizer local to one device
            with keras.name_scope(self.inner_optimizer.name, caller=self.inner_optimizer):  # stock Keras's paths
                replication.apart(lambda: self.inner_optimizer.build(variables))
        super().build(variables)

    def apply(self, grads: list, trainable_variables: list | None = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        self.workers.replicas.once(self._apply, grads, variables)

    def _apply(self, context: StepContext, grads: list, variables: list) -> None:
        state = self.variables  # variables that `build` adds start from constants
        if not self.built:
            self.build(variables)
        if self.is_scaled_outside and self.workers.size > 1:
            raise ValueError(
                "a `DistributedOptimizer` must stand outside of a `LossScaleOptimizer`, so that all workers skip "
                "a step together. Received: one inside. Pass `easyscale.callbacks.Distribute()` to `fit()`, or write "
                "`DistributedOptimizer(LossScaleOptimizer(optimizer))` and `compile(auto_scale_loss=False)`"
            )
        self.updates.check_step(is_first=self.starts_equal)
        if self.starts_equal:
            self.starts_equal = False
            self.workers.replicas.start_in_step(variables, state)
        self.updates.now.apply(context, grads, variables)

    def scale_loss(self, loss: Any) -> Any:
        loss, context = super().scale_loss(loss), self.workers.current_step.context
        if context.as_made:
            self.workers.gradients.early.expect(context, loss)
        return loss

    def stateless_apply(self, optimizer_variables: list, grads: list, trainable_variables: list) -> tuple[list, list]:
        given = optimizer_variables, grads, trainable_variables
        if self.workers.size == 1:
            return self.inner_optimizer.stateless_apply(*given)  # loss scaling overrides it, with other code
        if not (in_stateless_scope() or self.is_sharded):
            return super().stateless_apply(*given)
        # In a step of many workers all variables can be assigned, also those that only the update knows. So can they
        # without a graph, where a scope of Keras's would drop what a sharded update assigns.
        kinds = self.variables, self._trainable_variables
        for variables, values in zip(kinds, (optimizer_variables, trainable_variables), strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self.apply(grads)
        state, weights = ([variable.value for variable in variables] for variables in kinds)
        return weights, state

    @property
    def is_sharded(self) -> bool:
        """True if each worker currently has only its part of the inner optimizer's state."""
        return self.updates.now.divides_state

    @property
    def is_synchronous(self) -> bool:
        """True if all workers synchronize in each step of a `fit()`."""
        return self.updates.is_synchronous

    @property
    def is_served(self) -> bool:
        """True if ranks serve the update to each other, each in a thread beside its own steps."""
        return self.updates.served is not None

    @property
    def is_elastic(self) -> bool:
        """True if others can continue after a worker fails: not if it held part of the accumulated gradients."""
        inner = unscaled(self.inner_optimizer)
        accumulates = any(one.gradient_accumulation_steps for one in getattr(inner, "optimizers", [inner]))
        return self.workers.gradients.exchange.is_elastic and not accumulates

    def shard(self) -> None:
        """Begin the update of a `fit()`: divide the inner optimizer's state over workers, if possible.

        Raises:
            ValueError: If `update="sharded"` and the state cannot be divided.
        """
        self.workers.replicas.apart(self._shard)

    def _shard(self) -> None:
        is_divided = self.workers.size > 1 or self.workers.gradients.groups
        if self.built and is_divided and not self.workers.communicator.membership.is_joining:
            self.updates.begin(self._trainable_variables)

    def unshard(self, complete: bool) -> None:
        """End the update of a `fit()`, on all workers if `complete`; see `UpdateInFit.end`."""
        self.updates.end(complete)

    @property
    def late(self) -> LateGather | None:
        """The gather of weights at the start of the next step; `None` if a step gathers at its end."""
        return self.updates.now.late

    def back_up(self) -> None:
        """Copy each worker's part of the state, if divided, to a second worker. Collective: all workers call this."""
        self.updates.back_up()

    def make_whole(self, has_joined: bool) -> None:
        """Restore the inner optimizer's full state after workers fail or join; see `UpdateInFit.make_whole`."""
        self.updates.make_whole(has_joined)

    def collect_state(self, memory: SnapshotMemory) -> list:
        """Return, on the chief, the full values of `inner_optimizer.variables`. Collective: all workers call this.

        Args:
            memory: `SnapshotMemory`. Holds the values.
        """
        return self.updates.of_checkpoints.collect(memory)

    def set_state(self, values: list) -> None:
        """Set the values that `collect_state` returned; see `UpdateInFit.load`."""
        self.updates.load(values)

    def join(self, agreed: Agreed) -> bool:
        """Take part in a step of the other workers with weight zero; see `Gradients.join`."""
        return self.workers.gradients.join(agreed, self.workers.replicas.on_one_device(self._apply_in))

    def _apply_in(self, context: StepContext, grads: list, variables: list) -> None:
        with self.workers.current_step.of(context):
            self.apply(grads, variables)  # may be instrumented, as by `easyscale verify`

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in vars(self).get("_hyperparameters", ()):
            self.updates.set(name, value)

    # A model file has the inner optimizer's state once, where stock Keras looks for it.

    def save_own_variables(self, store: dict) -> None:
        self.updates.now.save_own_variables(store)

    def load_own_variables(self, store: dict) -> None:
        self.updates.now.load_own_variables(store)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        if self.is_sharded and save_type == "checkpoint":
            raise ValueError(
                "a `tf.train.Checkpoint` must be written while a worker has the optimizer's whole state. Received: "
                "one written in a `fit()` with a sharded update. Write it after `fit()`, use `model.save`, or pass "
                "`Distribute(update='replicated')`"
            )
        return super()._trackable_children(save_type, **kwargs)

    def get_config(self) -> dict:
        config = {name: getattr(self, name) for name in _ARGUMENTS}
        config["inner_optimizer"] = keras.saving.serialize_keras_object(self.inner_optimizer)
        config["compression"] = compressions.serialize(self.compression)
        config["update"] = updates.serialize(self.update)
        return config | {"exchange": getattr(self.exchange, "name", self.exchange)}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> "DistributedOptimizer":
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects=custom_objects)
        made = cls(**(config | {"inner_optimizer": inner}))
        made.is_by_hand = False
        return made


def _adds_up(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether gradients of an embedding row from several samples may be summed before the optimizer sees them.

    For many Keras optimizers that changes the step: they square, or clip, each sample's part separately.
    """
    optimizer = unscaled(optimizer)
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    return type(optimizer) is keras.optimizers.SGD and not clips


def _form_for(optimizer: keras.optimizers.Optimizer, compression: Form) -> Form:
    """Return the compression of gradients.

    Raises:
        ValueError: If error feedback would add a residual to a gradient with a different loss scale.
    """
    form = compressions.asked(compression)
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if isinstance(form, Compression) and form.keeps_error and is_scaled:
        raise ValueError(
            "error feedback needs gradients of one scale. Received: "
            f"compression={form.name!r} and a LossScaleOptimizer, whose scale changes. Use 'mixed_bfloat16', or a form "
            "that keeps no error, such as 'int8'"
        )
    return form


def _is_called_by(kind: type) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not isinstance(frame.f_locals.get("self"), kind):
        frame = frame.f_back
    return frame is not None
