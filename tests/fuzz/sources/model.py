"""The model of a drawn script."""

import textwrap

from fuzz.case import Case
from fuzz.dimensions.losses import LOSSES
from fuzz.dimensions.models import BODIES, is_words
from fuzz.sources.forms import structure

__all__ = ["model"]

_CLASSES = {
    "SelfAttention()": """
class SelfAttention(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 3)

    def build(self, shape):
        self.attention.build(shape, shape)
        super().build(shape)

    def call(self, x):
        return x + self.attention(x, x)
""",
    "Positions()": """
class Positions(layers.Layer):
    def __init__(self):
        super().__init__()
        self.positions = layers.Embedding(7, 4)

    def call(self, x):
        return x + self.positions(keras.ops.arange(keras.ops.shape(x)[1]))
""",
    "AddsLoss()": """
class AddsLoss(layers.Layer):
    supports_masking = True  # else a pipeline refuses it behind a mask

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x
""",
}

_CALLS_SUPER = """
def train_step(self, *given):
    return super().train_step(*given)
"""

_IMPORTS = """
if keras.backend.backend() == "jax":
    import jax
elif keras.backend.backend() == "torch":
    import torch
"""

# Steps as Keras's guides write them for each backend.
_OWN = """
if keras.backend.backend() == "jax":
    def train_step(self, state, data):
        trained, moved, listed, counted = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        of_loss = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        given = trained, moved, counted, x, y, sample_weight
        (_, (loss, y_pred, moved, counted)), gradients = of_loss(*given, training=True, optimizer_variables=listed)
        trained, listed = self.optimizer.stateless_apply(listed, gradients, trained)
        logs, new = {}, []
        for metric in self.metrics:
            values, counted = counted[: len(metric.variables)], counted[len(metric.variables) :]
            count = metric.stateless_update_state
            if metric.name == "loss":
                values = count(values, loss, sample_weight=y_pred.shape[0])
            else:
                values = count(values, y, y_pred, sample_weight=sample_weight)
            logs[metric.name] = metric.stateless_result(values)
            new += values
        return logs, (trained, moved, listed, new)
elif keras.backend.backend() == "torch":
    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        self.zero_grad()
        y_pred = self(x, training=True)
        TORCH_LOSS
        self.optimizer.scale_loss(loss).sum().backward()
        variables = self.trainable_weights
        gradients = [variable.value.grad for variable in variables]
        with torch.no_grad():
            UPDATE
        METRICS
else:
    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            TF_LOSS
            scaled = self.optimizer.scale_loss(loss)
        variables = self.trainable_variables
        gradients = tape.gradient(scaled, variables)
        UPDATE
        METRICS
"""
_UPDATES = {
    "own": "self.optimizer.apply(gradients, variables)",
    "own, in two": """half = len(variables) // 2
self.optimizer.apply(gradients[:half], variables[:half])
self.optimizer.apply(gradients[half:], variables[half:])""",
}
_LOSS = "loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)"
_NOT_REDUCED = """losses = keras.tree.flatten(self.loss)[0]
losses = type(losses).from_config({**losses.get_config(), "reduction": None})
loss = 0.05 * losses(y, y_pred, sample_weight=sample_weight)"""
# Losses that leave elements out, or that are not reduced, as Keras's examples have them; not on JAX.
_TF_LOSSES = {
    "of chosen elements": """losses = keras.tree.flatten(self.loss)[0]
chosen = tf.reduce_sum(tf.reshape(tf.cast(y, y_pred.dtype), [tf.shape(y)[0], -1]), -1) > 0
weights = None if sample_weight is None else tf.boolean_mask(sample_weight, chosen)
loss = losses(tf.boolean_mask(y, chosen), tf.boolean_mask(y_pred, chosen), sample_weight=weights)
for added in self.losses:
    loss += added""",
    "not reduced": _NOT_REDUCED,
}
_TORCH_LOSSES = {
    "of chosen elements": """losses = keras.tree.flatten(self.loss)[0]
chosen = y.to(y_pred.dtype).reshape(len(y), -1).sum(-1) > 0
weights = None if sample_weight is None else sample_weight[chosen]
loss = losses(y[chosen], y_pred[chosen], sample_weight=weights)
for added in self.losses:
    loss += added""",
}
_METRICS = """for metric in self.metrics:
    if metric.name == "loss":
        metric.update_state(loss, sample_weight=keras.ops.shape(y_pred)[0])
return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)"""
_ALL_METRICS = """for metric in self.metrics:
    if metric.name == "loss":
        metric.update_state(loss)
    else:
        metric.update_state(y, y_pred, sample_weight=sample_weight)
return {metric.name: metric.result() for metric in self.metrics}"""


def _step(case: Case) -> str:
    """Return the source of the model's own `train_step`; an empty one if it has Keras's."""
    if case["own_loss"] == "none" and case["step"] in ("Keras's", "calls super"):
        return "" if case["step"] == "Keras's" else _CALLS_SUPER.strip("\n")
    parts = {
        "TF_LOSS": _TF_LOSSES.get(case["own_loss"], _LOSS),
        "TORCH_LOSS": _TORCH_LOSSES.get(case["own_loss"], _LOSS),
        "UPDATE": _UPDATES.get(case["step"], _UPDATES["own"]),
        "METRICS": _METRICS if case["own_loss"] == "none" else _ALL_METRICS,
    }
    lines: list[str] = []
    for line in _OWN.strip("\n").splitlines():
        part = parts.get(line.strip())
        lines.append(line if part is None else textwrap.indent(part, " " * (len(line) - len(line.lstrip()))))
    return "\n".join(lines)


def model(case: Case) -> str:
    """Return the source of the layers and of `model`."""
    parts = list(BODIES[case["body"]][1])
    first = _layer(parts[0].format(**_weight_arguments(case)))
    rest = [case.source("norm"), *["AddsLoss()"] * (case["add_loss"] != "none"), *parts[1:]]
    lines = [_CLASSES[part].strip("\n") + "\n" for part in rest if part in _CLASSES]
    heads = [f'layers.Dense({LOSSES[case["loss"]][2]}, name="one")']
    heads += ['layers.Dense(1, name="two")'] if case["outputs"] != "one" else []
    lines += [
        f"firsts = [{', '.join([first] * (2 if case['inputs'] == 'two' else 1))}]",
        f"rest = [{', '.join(_layer(part) for part in rest if part)}]",
        f"heads = [{', '.join(heads)}]",
    ]
    lines += ["firsts[0].trainable = False"] if case["frozen"] != "nothing" else []
    lines += [_IMPORTS.strip("\n")] if "backend()" in _step(case) else []
    return "\n".join(lines) + "\n" + _styled(case)


def _layer(part: str) -> str:
    return part if part in _CLASSES else "layers." + part.replace("(GRU", "(layers.GRU")


def _weight_arguments(case: Case) -> dict[str, str]:
    def arguments(*names: str) -> str:
        given = [(kind, case.source(kind)) for kind in ("regularizer", "constraint")]
        texts = [f", {name}_{kind}={source}" for name in names for kind, source in given if source]
        return "".join(texts) + case.arguments_of("layer")

    return {
        "weights": arguments("kernel"),
        "embeddings": arguments("embeddings"),
        "separable": arguments("depthwise", "pointwise"),
    }


def _styled(case: Case) -> str:
    shape, dtype = case.source("body").removesuffix(" int"), ', dtype="int64"' if is_words(case) else ""
    given = f"keras.Input({shape}{dtype})"
    step = _step(case)
    base = {"functional": "keras.Model", "subclassed": "keras.Model"}.get(case["style"], "keras.Sequential")
    lines = []
    if step and case["style"] != "subclassed":
        lines += [f"class Model({base}):", textwrap.indent(step, "    "), ""]
        base = "Model"
    if case["style"] == "sequential":
        return "\n".join([*lines, f"model = {base}([{given}, *firsts, *rest, *heads])"]) + "\n"
    if case["style"] == "unbuilt":
        return "\n".join([*lines, f"model = {base}([*firsts, *rest, *heads])"]) + "\n"
    if case["style"] == "nested":
        inner = f"keras.Sequential([{given}, *firsts, *rest])"
        return "\n".join([*lines, f"model = {base}([{inner}, *heads])"]) + "\n"
    join, late = "join = layers.Concatenate()", case["inputs"] == "shared, late"
    joins = {
        "one": "",
        "two": join,
        "shared": "join = layers.Add()",
        "shared, late": f"{join}\nflat = layers.Flatten()",
    }
    flows = {"one": "firsts[0](x)", "two": 'join([firsts[0](x["a"]), firsts[1](x["b"])])'}
    flows |= {"shared": flows["two"].replace("firsts[1]", "firsts[0]"), "shared, late": 'firsts[0](x["a"])'}
    lines += [joins[case["inputs"]]] if joins[case["inputs"]] else []
    lines += ["def flow(x):", f"    h = {flows[case['inputs']]}", "    for layer in rest:", "        h = layer(h)"]
    lines += ['    h = join([flat(h), flat(firsts[0](x["b"]))])'] if late else []
    lines += [f"    return {structure(case, 'heads[0](h)', 'heads[1](h)')}", ""]
    if case["style"] == "functional":
        inputs = given if case["inputs"] == "one" else f'{{"a": {given}, "b": {given}}}'
        return "\n".join([*lines, f"inputs = {inputs}", f"model = {base}(inputs, flow(inputs))"]) + "\n"
    lines += ["class Net(keras.Model):", "    def __init__(self):", "        super().__init__()"]
    lines += ["        self.parts = [*firsts, *rest, *heads]", "", "    def call(self, x):", "        return flow(x)"]
    lines += ["", textwrap.indent(step, "    ")] if step else []
    return "\n".join([*lines, "", "model = Net()"]) + "\n"
