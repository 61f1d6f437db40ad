"""The data of a drawn script, and how they are fed."""

from fuzz.case import Case
from fuzz.dimensions.data import GLOBAL_BATCH
from fuzz.dimensions.losses import LOSSES, target
from fuzz.dimensions.models import is_words
from fuzz.sources.forms import structure

__all__ = ["data"]


def data(case: Case) -> str:
    """Return the source of `draw`, of `data` and `held`, and of `feed`."""
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
    lines = ["def draw(count):", f"    x = {x}", f"    y = {structure(case, y, second)}"]
    held = case.source("validation") if case["validation"] in ("data", "uneven data", "whole data") else "12"
    if case["weights"] == "none":
        lines += ["    return x, y"]
    else:
        lines += [f"    return x, y, {structure(case, weight, weight)}"]
    lines += [
        "",
        f"data, held = draw({case['samples']}), draw({held})",
        *_adapted(case),
        "",
    ]
    return "\n".join(lines) + "\n" + _feed(case)


def _adapted(case: Case) -> list[str]:
    """Return the source that prepares the data by a layer which is adapted to them."""
    if case["adapted"] == "nothing":
        return []
    layer = "IntegerLookup(mask_token=0, num_oov_indices=0)" if is_words(case) else "Normalization(axis=None)"
    lines = [f"prepares = layers.{layer}", "given = easyscale.shard(data[0]) if easyscale else data[0]"]
    given = "given" if case["adapted"] == "to arrays" else "tf.data.Dataset.from_tensor_slices(given).batch(5)"
    lines += [f"prepares.adapt({given})"]
    if is_words(case):
        lines += ["held = (np.where(np.isin(held[0], data[0]), held[0], data[0].flat[0]), *held[1:])"]
    lines += ["data, held = ((np.asarray(prepares(given[0])), *given[1:]) for given in (data, held))"]
    return lines


_FEEDS = {
    "arrays": """
def feed(x, y, sample_weight=None):
    if easyscale:
        x, y, sample_weight = easyscale.shard(x, y, sample_weight)
    return {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch}
""",
    "tensors": """
def feed(*data):
    x, y, sample_weight = (*keras.tree.map_structure(keras.ops.convert_to_tensor, data), *[None] * (3 - len(data)))
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
    rank, size = (easyscale.rank(), easyscale.size()) if BETWEEN else (0, 1)
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
    words = {"GLOBAL": str(GLOBAL_BATCH), "BETWEEN": "easyscale" if case["replication"] == "between_graph" else "False"}
    source = _FEEDS[case["source"]].strip("\n")
    for word, replacement in words.items():
        source = source.replace(word, replacement)
    return source + "\n"
