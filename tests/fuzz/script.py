"""A case as a Keras script: what is run here, with and without EasyScale, and what a person runs who looks into it."""

import textwrap

from fuzz.case import Case
from fuzz.dimensions.data import GLOBAL_BATCH
from fuzz.dimensions.losses import LOSSES, target
from fuzz.dimensions.models import BODIES, is_words
from fuzz.dimensions.optimizers import OPTIMIZERS

__all__ = ["environment", "launch_options", "render"]

_HEAD = '''"""{title}

    easyscale launch {options} THIS_FILE

{case}
"""

import contextlib
import io
import pathlib
import tempfile
import zipfile

import h5py
import keras
import numpy as np
import tensorflow as tf
from keras import layers
{imports}

def train(easyscale, folder):
    """Train without EasyScale where `easyscale` is None, and return what can be seen of it."""
    keras.config.set_floatx("{floatx}")
    keras.config.set_dtype_policy("{policy}")
    keras.utils.set_random_seed({seed})
    generator = np.random.default_rng({seed})
    batch = easyscale.local_batch({batch}) if easyscale else {batch}
    seen = {{}}
'''

_FOOT = """

if __name__ == "__main__":
    import easyscale

    easyscale.scope()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as several:
        expected = train(None, one) if easyscale.is_chief() else None
        found = train(easyscale, several)
    if easyscale.is_chief():
        for (path, value), other in zip(keras.tree.flatten_with_path(expected), keras.tree.flatten(found), strict=True):
            gap = np.abs(np.asarray(value, "float64") - np.asarray(other, "float64")).max(initial=0)
            print(*path, f"differs by {gap:.1e}", sep=", ")
"""


def launch_options(case: Case) -> list[str]:
    """Return the options of `easyscale launch`."""
    options = ["-n", case["workers"]]
    if case["replication"] == "in_graph":
        options += ["--replication", "in_graph"]
    if case["servers"] != "0":
        options += ["--servers", case["servers"]]
    return options


def environment(case: Case) -> dict[str, str]:
    """Return the environment variables that the ranks need beside."""
    return {} if case["nodes"] == "1" else {"EASYSCALE_FUZZ_NODE_SIZE": case.source("nodes")}


def render(case: Case, perturbed: bool = False) -> str:
    """Return the source of a script whose `train(easyscale, folder)` returns what can be seen of training.

    Args:
        case: `Case`.
        perturbed: Bool. Whether weights start a rounding error away. Defaults to `False`.
    """
    precision = case["precision"]
    head = _HEAD.format(
        title="What one process and several do differently.",
        options=" ".join(launch_options(case)),
        case=case,
        imports="from easyscale import optimizers as easyscale_optimizers\n"
        * ("easyscale" in case.source("optimizer")),
        floatx="float64" if precision == "float64" else "float32",
        policy=precision,
        seed=case.seed,
        batch=GLOBAL_BATCH,
    )
    parts = [
        _data(case),
        _in_scope(case, _model(case)),
        _compile(case),
        _perturb(case) if perturbed else "",
        _fit(case),
        _others(case),
        "compile_model()\nfit()",
        case.source("second"),
        case.source("third"),
        "return seen",
    ]
    body = "\n".join(textwrap.indent(part.strip("\n"), "    ") for part in parts if part)
    return head + body + "\n" + _FOOT


def _in_scope(case: Case, source: str) -> str:
    if case["replication"] != "in_graph":
        return source
    return "with easyscale.scope() if easyscale else contextlib.nullcontext():\n" + textwrap.indent(source, "    ")


# Data


def _data(case: Case) -> str:
    shape = case.source("body").removesuffix(" int")
    rows = "300" if case["body"] == "large embedding" else "12"
    per_sample = "(count, 5" if case["body"] == "words" else "(count,"
    if is_words(case):
        x = f"generator.integers(1, {rows}, (count, *{shape}))"
        if "mask" in case["body"] or case["body"] == "words":
            x = f"{x} * (np.arange({shape}[0]) < generator.integers(1, {shape}[0] + 1, (count, 1)))"
    else:
        x = f"generator.normal(size=(count, *{shape})).astype(keras.config.floatx())"
    units = LOSSES[case["loss"]][2]
    y = {
        "numbers": f"generator.normal(size=({per_sample[1:]}, {units})).astype(keras.config.floatx())",
        "labels": f"generator.integers(0, {units}, {per_sample}))",
        "one-hot": f"np.eye({units}, dtype=keras.config.floatx())[generator.integers(0, {units}, {per_sample}))]",
        "bits": f"generator.integers(0, 2, ({per_sample[1:]}, {units})).astype(keras.config.floatx())",
    }[target(case)].replace(",,", ",")
    weight = f"generator.uniform(0, 2, {per_sample})).astype(keras.config.floatx())"
    if case["weights"] == "with zeros":
        weight += f" * (generator.uniform(size={per_sample})) > 0.4)"
    second = f"generator.normal(size=({per_sample[1:]}, 1)).astype(keras.config.floatx())".replace(",,", ",")
    x = x if case["inputs"] == "one" else f'{{"a": {x}, "b": {x}}}'
    lines = ["def draw(count):", f"    x = {x}", f"    y = {_structure(case, y, second)}"]
    held = case.source("validation") if case["validation"] in ("data", "uneven data") else "12"
    if case["weights"] == "none":
        lines += ["    return x, y"]
    else:
        lines += [f"    return x, y, {_structure(case, weight, weight)}"]
    lines += [
        "",
        f"data, held = draw({case['samples']}), draw({held})",
        "",
    ]
    return "\n".join(lines) + "\n" + _feed(case)


def _structure(case: Case, one: str, two: str) -> str:
    forms = {"one": "{0}", "dict": '{{"one": {0}, "two": {1}}}', "list": "[{0}, {1}]"}
    return forms[case["outputs"]].format(one, two)


_FEEDS = {
    "arrays": """
def feed(x, y, sample_weight=None):
    if easyscale:
        x, y, sample_weight = easyscale.shard(x, y, sample_weight)
    return {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch}
""",
    "tensors": """
def feed(*data):
    x, y, sample_weight = (*keras.tree.map_structure(tf.constant, data), *[None] * (3 - len(data)))
    if easyscale:
        x, y, sample_weight = easyscale.shard(x, y, sample_weight)
    return {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch}
""",
    "batched dataset": """
def feed(*data):
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(GLOBAL)
    return {"x": easyscale.shard(dataset) if easyscale else dataset}
""",
    "mapped dataset": """
def feed(*data):
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(GLOBAL).map(lambda *rows: rows).prefetch(2)
    return {"x": easyscale.shard(dataset, batched=True) if easyscale else dataset}
""",
    "dataset of samples": """
def feed(*data):
    dataset = tf.data.Dataset.from_tensor_slices(data)
    return {"x": (easyscale.shard(dataset, batched=False) if easyscale else dataset).batch(batch)}
""",
    "PyDataset": """
class Batches(keras.utils.PyDataset):
    def __init__(self, data):
        super().__init__()
        self.data, self.count = data, len(keras.tree.flatten(data)[0])

    def __len__(self):
        return -(-self.count // GLOBAL)

    def __getitem__(self, index):
        return keras.tree.map_structure(lambda array: array[index * GLOBAL : (index + 1) * GLOBAL], self.data)

def feed(*data):
    return {"x": easyscale.shard(Batches(data)) if easyscale else Batches(data)}
""",
    "generator": """
def batches(data):
    rank, size = (easyscale.rank(), easyscale.size()) if easyscale else (0, 1)
    count = len(keras.tree.flatten(data)[0])
    while True:
        for start in range(0, count, GLOBAL):
            yield keras.tree.map_structure(lambda array: array[start + rank : start + GLOBAL : size], data)

def feed(*data):
    count = len(keras.tree.flatten(data)[0])
    return {"x": batches(data), "steps_per_epoch": -(-count // GLOBAL)}
""",
}


def _feed(case: Case) -> str:
    return _FEEDS[case["source"]].strip("\n").replace("GLOBAL", str(GLOBAL_BATCH)) + "\n"


# The model

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
    "AddsLoss()": """
class AddsLoss(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x
""",
}

_STEPS = {
    "calls super": """
def train_step(self, data):
    return super().train_step(data)
""",
    "own": """
def train_step(self, data):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        scaled = self.optimizer.scale_loss(loss)
    variables = self.trainable_variables
    UPDATE
    for metric in self.metrics:
        if metric.name == "loss":
            metric.update_state(loss, sample_weight=tf.shape(y_pred)[0])
    return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
""",
}
_STEPS["own, in two"] = _STEPS["own"].replace(
    "    UPDATE",
    "    gradients, half = tape.gradient(scaled, variables), len(variables) // 2\n"
    "    self.optimizer.apply(gradients[:half], variables[:half])\n"
    "    self.optimizer.apply(gradients[half:], variables[half:])",
)
_STEPS["own"] = _STEPS["own"].replace(
    "    UPDATE", "    self.optimizer.apply(tape.gradient(scaled, variables), variables)"
)


def _model(case: Case) -> str:
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
    step = _STEPS.get(case["step"], "").strip("\n")
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
    joins = {"one": "", "two": "join = layers.Concatenate()", "shared": "join = layers.Add()"}
    flows = {"one": "firsts[0](x)", "two": 'join([firsts[0](x["a"]), firsts[1](x["b"])])'}
    flows["shared"] = flows["two"].replace("firsts[1]", "firsts[0]")
    lines += [joins[case["inputs"]]] if joins[case["inputs"]] else []
    lines += ["def flow(x):", f"    h = {flows[case['inputs']]}", "    for layer in rest:", "        h = layer(h)"]
    lines += [f"    return {_structure(case, 'heads[0](h)', 'heads[1](h)')}", ""]
    if case["style"] == "functional":
        inputs = given if case["inputs"] == "one" else f'{{"a": {given}, "b": {given}}}'
        return "\n".join([*lines, f"inputs = {inputs}", f"model = {base}(inputs, flow(inputs))"]) + "\n"
    lines += ["class Net(keras.Model):", "    def __init__(self):", "        super().__init__()"]
    lines += ["        self.parts = [*firsts, *rest, *heads]", "", "    def call(self, x):", "        return flow(x)"]
    lines += ["", textwrap.indent(step, "    ")] if step else []
    return "\n".join([*lines, "", "model = Net()"]) + "\n"


def _compile(case: Case) -> str:
    arguments = [case.source("clip"), case.arguments_of("optimizer").removeprefix(", ")]
    arguments = "".join(f", {one}" for one in arguments if one)
    optimizer = OPTIMIZERS[case["optimizer"]].format(rate=case.source("rate"), arguments=arguments)
    reduction = [f"reduction={case.source('reduction')}"] if case["reduction"] else []
    loss = f"keras.losses.{case.source('loss')}({', '.join([*filter(None, [LOSSES[case['loss']][0]]), *reduction])})"
    two = f"keras.losses.MeanSquaredError({', '.join(reduction)})"
    compiled = [f"loss={_structure(case, loss, two)}"]
    if case["loss_weights"] != "none":
        compiled += [f"loss_weights={_structure(case, '1.0', '0.3')}"]
    for name in ("metrics", "weighted_metrics"):
        if case.source(name):
            metrics = f"[{case.source(name)}]"
            forms = {"one": metrics, "dict": f'{{"one": {metrics}}}', "list": f"[{metrics}, []]"}
            compiled += [f"{name}={forms[case['outputs']]}"]
    lines = ["if optimizer is None:", f"    optimizer = {optimizer}"]
    if case["exclude"] != "nothing":
        lines += [f"    optimizer.exclude_from_weight_decay(var_names={case.source('exclude')})"]
    if case["scaled"] != "no":
        lines += [f"    optimizer = {case.source('scaled').format(optimizer='optimizer')}"]
    if case["wrapped"] == "by hand":
        arguments = case.arguments_of("distribute").partition(", check_every")[0]
        lines += ["    if easyscale:", f"        optimizer = easyscale.DistributedOptimizer(optimizer{arguments})"]
    lines += [f"model.compile(optimizer, {', '.join(compiled)}{case.arguments_of('compile')})"]
    if case["precision"] == "mixed_float16":
        # At Keras's 2 ** 15 gradients of a part of the batch overflow where those of the whole do not.
        lines += ["if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):"]
        lines += ["    model.optimizer.initial_scale = 16.0"]
    if case["step"] == "own, in two":
        lines += ["model.optimizer.build(model.trainable_variables)"]
    body = textwrap.indent(_in_scope(case, "\n".join(lines)), "    ")
    return f"def compile_model(optimizer=None):\n{body}\n"


# What is done with it

_FILES = """
def files():
    if easyscale and not easyscale.is_chief():
        return {}
    arrays = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        if path.suffix in (".h5", ".keras"):
            whole = zipfile.ZipFile(path).read("model.weights.h5") if path.suffix == ".keras" else path.read_bytes()
            with h5py.File(io.BytesIO(whole)) as file:
                def visit(name, item):
                    if isinstance(item, h5py.Dataset):
                        arrays[f"{path.name} {name}"] = item[()]

                file.visititems(visit)
    return arrays
"""


def _fit(case: Case) -> str:
    arguments = case.arguments_of("distribute").removeprefix(", ")
    if case["wrapped"] == "by hand":
        arguments = f"check_every={case.source('check_every')}" if case.source("check_every") else ""
    options = {"none": "", "split": ", validation_split=0.25"}.get(
        case["validation"], ", validation_data=easyscale.shard(*held) if easyscale else held"
    )
    callbacks = ", ".join(filter(None, [case.source("callback"), case.source("second_callback")]))
    saves = "ModelCheckpoint" in callbacks
    files = '"files": files(),\n        ' if saves else ""
    return f"""{_FILES if saves else ""}
def fit(**options):
    callbacks = [{callbacks}]
    if easyscale:
        callbacks.append(easyscale.callbacks.Distribute({arguments}))
    options = dict(epochs={case["epochs"]}, shuffle=False, verbose=0{options}{case.arguments_of("fit")}, **options)
    history = model.fit(**{{**feed(*data), **options}}, callbacks=callbacks)
    optimizer = model.optimizer.inner_optimizer if easyscale else model.optimizer
    seen[f"after {{len(seen)}} others, fit"] = {{
        {files}"history": {{name: history.history[name] for name in sorted(history.history)}},
        "weights": model.get_weights(),
        "optimizer": [keras.ops.convert_to_numpy(variable) for variable in optimizer.variables],
    }}
"""


def _others(case: Case) -> str:
    said = case.source("second") + case.source("third")
    parts = [
        """
def own(x, y, sample_weight=None):
    return easyscale.shard(x, y, sample_weight) if easyscale else (x, y, sample_weight)
"""
    ] * any(word in said for word in ("evaluate()", "predict()", "train_on_batch()"))
    if "evaluate()" in said:
        parts += [
            """
def evaluate():
    x, y, sample_weight = own(*held)
    callbacks = [easyscale.callbacks.Distribute()] if easyscale else []
    options = {"batch_size": batch, "verbose": 0, "callbacks": callbacks, "return_dict": True}
    logs = model.evaluate(x, y, sample_weight=sample_weight, **options)
    seen[f"after {len(seen)} others, evaluate"] = {name: logs[name] for name in sorted(logs)}
"""
        ]
    if "predict()" in said:
        parts += [
            """
def predict():
    predictions = model.predict(own(*held)[0], batch_size=batch, verbose=0)
    predictions = keras.tree.map_structure(easyscale.unshard, predictions) if easyscale else predictions
    seen[f"after {len(seen)} others, predict"] = predictions
"""
        ]
    if "train_on_batch()" in said:
        parts += [
            f"""
def train_on_batch():
    x, y, _ = own(*draw({GLOBAL_BATCH}))
    model.train_on_batch(x, y)
    seen[f"after {{len(seen)}} others, train_on_batch"] = model.get_weights()
"""
        ]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _perturb(case: Case) -> str:
    scale = {"float64": "1e-15"}.get(case["precision"], "1e-7")
    return f"""
model(keras.tree.map_structure(lambda array: array[:2], data[0]))
noise = np.random.default_rng(0)
for weight in model.trainable_variables:
    weight.assign(weight * (1 + {scale} * noise.normal(size=weight.shape)))
"""
