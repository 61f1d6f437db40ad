"""What a drawn script does with its model."""

import textwrap

from fuzz.case import Case
from fuzz.compare import rounded_to
from fuzz.dimensions.data import GLOBAL_BATCH
from fuzz.dimensions.losses import LOSSES
from fuzz.dimensions.optimizers import OPTIMIZERS
from fuzz.sources import parallel
from fuzz.sources.forms import in_scope, structure
from fuzz.sources.resume import in_fit

__all__ = ["compile_model", "fit", "others", "perturb", "see_files"]


def compile_model(case: Case, perturbed: bool = False) -> str:
    """Return the source of `compile_model`."""
    arguments = [case.source("clip"), case.arguments_of("optimizer").removeprefix(", ")]
    arguments = "".join(f", {argument}" for argument in arguments if argument)
    optimizer = OPTIMIZERS[case["optimizer"]].format(rate=case.source("rate"), arguments=arguments)
    reduction = [f"reduction={case.source('reduction')}"] if case["reduction"] else []
    loss = f"keras.losses.{case.source('loss')}({', '.join([*filter(None, [LOSSES[case['loss']][0]]), *reduction])})"
    two = f"keras.losses.MeanSquaredError({', '.join(reduction)})"
    losses = [f"rounded({name})" if perturbed else name for name in (loss, two)]
    compiled = [f"loss={structure(case, *losses)}"]
    if case["loss_weights"] != "none":
        compiled += [f"loss_weights={structure(case, '1.0', '0.3')}"]
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
    if case["step"] == "own, in two" and case["scope"] == "no":
        # Keras gives a `LossScaleOptimizer` that is built once more its variables twice.
        lines += ["if not model.optimizer.built:", "    model.optimizer.build(model.trainable_variables)"]
    body = textwrap.indent(in_scope(case, "\n".join(lines)), "    ")
    return f"def compile_model(optimizer=None):\n{body}\n"


_FILES = """
def files(folder=folder):
    if (easyscale and not easyscale.is_chief()) or NOT_THE_CHIEF:
        return {}
    arrays = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        if path.suffix in (".h5", ".keras"):
            whole = zipfile.ZipFile(path).read("model.weights.h5") if path.suffix == ".keras" else path.read_bytes()
            with h5py.File(io.BytesIO(whole)) as file:
                def visit(name, item):
                    # Keras writes twice what a LossScaleOptimizer has inside.
                    if isinstance(item, h5py.Dataset) and "inner_optimizer/" not in name:
                        arrays[f"{path.name} {name}"] = item[()]

                file.visititems(visit)
    return arrays
"""


_SEEN = """"weights": model.get_weights(),
        "optimizer": [keras.ops.convert_to_numpy(variable) for variable in optimizer.variables],"""

_SAVED = """
def saved():
    with tempfile.TemporaryDirectory() as empty:
        model.save(f"{empty}/saved.keras")
        return files(empty)
"""


def fit(case: Case) -> str:
    """Return the source of `fit`."""
    is_saved = case["scope"] == "yes"  # no rank has all weights
    arguments = case.arguments_of("distribute").removeprefix(", ")
    if case["wrapped"] == "by hand":
        arguments = f"check_every={case.source('check_every')}" if case.source("check_every") else ""
    options = {
        "none": "",
        "split": ", validation_split=0.25",
        "whole data": ", validation_data=held, validation_batch_size=5",
    }.get(case["validation"], ", validation_data=easyscale.shard(*held) if easyscale else held")
    more = (", steps_per_epoch=2" if case["batch"] == "by steps" else "") + case.arguments_of("fit")
    callbacks = ", ".join(filter(None, [case.source("callback"), case.source("second_callback")]))
    saves = "ModelCheckpoint" in callbacks
    # What the first start of a script has written stays until the second writes it again.
    of_files = [*["files()"] * (saves and case["resume"] == "no"), *["saved()"] * is_saved]
    files = f'"files": {" | ".join(of_files)},\n        ' if of_files else ""
    resumed = in_fit(case)
    arguments = ", ".join(filter(None, [arguments, parallel.argument(case), resumed.argument]))
    begin, before, behind = (
        f"{line}\n    " if line else "" for line in (resumed.begin, resumed.before, resumed.behind)
    )
    not_the_chief = 'os.environ.get("OMPI_COMM_WORLD_RANK", "0") != "0"' if case["auto"] == "yes" else "False"
    files_of_chief = _FILES.replace("NOT_THE_CHIEF", not_the_chief)
    return f"""{files_of_chief if saves or is_saved else ""}{_SAVED if is_saved else ""}
def fit(**options):
    {begin}callbacks = [{callbacks}]
    if easyscale:
        callbacks.append(easyscale.callbacks.Distribute({arguments}))
    options = dict(epochs={case["epochs"]}, shuffle=False, verbose=0{options}{more}) | options
    {before}history = model.fit(**{{**feed(*data), **options}}, callbacks=callbacks)
    {behind}optimizer = model.optimizer
    if easyscale and isinstance(optimizer, easyscale.DistributedOptimizer):
        optimizer = optimizer.inner_optimizer
    seen[f"after {{len(seen)}} others, fit"] = {{
        {files}"history": {{name: history.history[name] for name in sorted(history.history)}},
        {"" if is_saved else _SEEN}
    }}
"""


def see_files(case: Case) -> str:
    """Return the source of what is seen of files at the end, if each `fit()` does not."""
    saves = "ModelCheckpoint" in case.source("callback") + case.source("second_callback")
    return 'seen["files"] = files()' if saves and case["resume"] != "no" else ""


def others(case: Case) -> str:
    """Return the source of what the case calls beside `fit`."""
    said = case.source("called_first") + case.source("second") + case.source("third")
    parts = [
        """
def own(x, y, sample_weight=None):
    return easyscale.shard(x, y, sample_weight) if easyscale else (x, y, sample_weight)
"""
    ] * any(word in said for word in ("evaluate()", "predict()", "train_on_batch()"))
    if "evaluate()" in said:
        parts += [
            f"""
def evaluate():
    x, y, sample_weight = own(*held)
    callbacks = [easyscale.callbacks.Distribute({parallel.argument(case)})] if easyscale else []
    options = {{"batch_size": batch, "verbose": 0, "callbacks": callbacks, "return_dict": True}}
    logs = model.evaluate(x, y, sample_weight=sample_weight, **options)
    seen[f"after {{len(seen)}} others, evaluate"] = {{name: logs[name] for name in sorted(logs)}}
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


def perturb(case: Case, sign: int) -> str:
    """Return the source of what moves weights by a rounding error, and `rounded`, which moves each sample's loss.

    Weights alone do not: where a loss has the same gradient whatever they are, its parts may cancel exactly. Then the
    sign of what is left is that of the errors, or the opposite one if these have it, with `sign`.
    """
    scale = {"float64": "1e-15", "mixed_float16": "5e-4", "mixed_bfloat16": "4e-3"}.get(rounded_to(case), "1e-7")
    scale = scale if sign > 0 else f"-{scale}"
    return f"""
def rounded(loss):
    exact = loss.call

    def call(y_true, y_pred):
        losses = exact(y_true, y_pred)
        return losses * (1 + {scale} * keras.random.normal(keras.ops.shape(losses), dtype=losses.dtype, seed=1))

    loss.call = call
    return loss

model(keras.tree.map_structure(lambda array: array[:2], data[0]))
noise = np.random.default_rng(0)
for weight in model.trainable_variables:
    weight.assign(weight * (1 + {scale} * noise.normal(size=weight.shape)))
"""
