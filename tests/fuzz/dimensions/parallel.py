"""Whether the workers divide the model as well: a pipeline's stages, or split layers."""

from collections.abc import Iterator

from fuzz.dimension import Dimension
from fuzz.dimensions.distribution import waits
from fuzz.dimensions.losses import LOSSES

# Which layers are split, and how: arguments of `Split`. All heads are called "one" and "two".
LAYERS = {
    "auto": '"auto"',
    "head by rows": '{"one": "rows"}',
    "head by columns": '{"one": "columns"}',
    "first by rows": '{"dense.*|embedding.*|attention_output.*": "rows"}',
    "first by columns": '{"dense.*|embedding.*|query.*": "columns"}',
    "columns, then rows": '{"dense.*|embedding.*|query.*|key.*|value.*": "columns", "one|attention_output.*": "rows"}',
    "heads": '{"multi_head_attention.*": "heads"}',
    "heads and more": '{"dense.*|embedding.*": "columns", "multi_head_attention.*": "heads", "one": "rows"}',
    "vocabulary": '{"one": "vocabulary"}',
    "first to last": '{"dense.*|embedding.*": "rows", "one": "vocabulary"}',
    "rows, then columns": '{"dense.*|embedding.*|attention_output.*": "rows", "one": "columns"}',
}

# Those whose first layer can be split.
_MATCHED = ("dense", "deep", "embedding", "large embedding", "attention", "masked", "words")
_WHOLE_WEIGHTS = ("Lamb", "Muon", "Adafactor", "LARS", "easyscale.SGD")
# Layers with weights to train, in a model of one input, one output and nothing between.
_LAYERS_WITH_WEIGHTS = {"deep": 4, "separable": 3, "attention": 3, "masked": 3, "words": 3}
_WITHOUT_WEIGHTS = ("none", "unit")


def is_pipelined(case):
    """Whether several processes train stages."""
    return case["model_parallel"].startswith("pipeline") and case["workers"] != "1"


def is_split(case):
    """Whether several processes have slices of layers."""
    return case["model_parallel"] == "split" and case["workers"] != "1"


def stages(case):
    """The number of stages: as many as workers, or half as many, of pipelines side by side."""
    return {"3": 3, "4": 2}.get(case["workers"], 2)


def is_in_scope(case):
    """Whether the model is built in `Pipeline.scope()`: no process has the weights of another's stage."""
    return is_pipelined(case) and case["scope"] == "yes"


def has_split_stages(case):
    """Whether each stage is on two processes, which divide layers."""
    return is_pipelined(case) and case["stage_split"] != "none" and case["workers"] == "4"


def pipelines(case):
    """The number of pipelines; 0 without."""
    return int(case["workers"]) // (stages(case) * (1 + has_split_stages(case))) if is_pipelined(case) else 0


def is_grouped(case):
    """Whether ranks of a group are one worker, and divide layers among themselves."""
    return is_split(case) and case["group"] != "none"


def groups(case):
    """The number of groups; 0 without."""
    if not is_grouped(case):
        return 0
    return 1 if case["group"] == "all" else int(case["workers"]) // 2


def replicas(case):
    """The number of parts that a batch is divided into: one for each rank, pipeline or group."""
    return pipelines(case) or groups(case) or int(case["workers"])


def refused(case) -> Iterator[str]:
    """Yield the dimensions by whose values EasyScale refuses the case: docs/model_parallel.md, in code."""
    found = {}
    if is_pipelined(case):
        found = _refused_of_pipelines(case)
        if has_split_stages(case):
            split = _refused_of_split(case, case["stage_split"], ranks=2)
            found = {name: found.get(name, False) or split.get(name, False) for name in {**found, **split}}
            found |= {"stage_split": split["split"], "scope": case["scope"] == "yes"}
    elif is_split(case):
        found = _refused_of_split(case, case["split"], int(case["workers"]) // (groups(case) or 1))
    if not found and case["rounds"] != "none":
        found = _refused_of_steps_alone(case)
    elif found:
        found |= {
            "rounds": case["rounds"] != "none",
            "replication": case["replication"] == "in_graph",
            "servers": case["servers"] != "0",
            "exchange": not waits(case),
        }
    yield from (name for name, is_refused in found.items() if is_refused)


def _refused_of_steps_alone(case):
    return {
        "exchange": not waits(case),
        "gradient_accumulation_steps": case["gradient_accumulation_steps"] != "none",
        "use_ema": case["use_ema"] == "yes",
    }


def _refused_of_pipelines(case):
    scales = case["scaled"] == "yes" or case["precision"] == "mixed_float16" or case["clip"] == "global norm"
    layers = _LAYERS_WITH_WEIGHTS.get(case["body"], 2) + (case["norm"] not in _WITHOUT_WEIGHTS)
    whole = case["optimizer"] in _WHOLE_WEIGHTS or case["gradient_accumulation_steps"] != "none"
    whole |= case["use_ema"] == "yes"
    whole |= case["scaled"] == "yes" or case["precision"] == "mixed_float16"
    layers += (case["outputs"] != "one") + (case["inputs"] == "two") - (case["frozen"] != "nothing")
    return {
        "resume": is_in_scope(case) and case["resume"] != "no" and _has(case, "EarlyStopping"),
        "use_ema": is_in_scope(case) and _has(case, "SwapEMAWeights"),
        "workers": layers < stages(case),
        "update": case["update"] == "sharded" and whole,
        "wrapped": case["wrapped"] == "by hand",
        "body": case["body"] == "words",
        "frozen": layers < 2,
        "norm": case["norm"].startswith("synchronized"),
        "style": case["style"] in ("unbuilt", "subclassed"),
        "step": case["step"] != "Keras's",
        "gradient_accumulation_steps": case["gradient_accumulation_steps"] != "none" and scales,
        "steps_per_execution": case["steps_per_execution"] != "1",
        "microbatches": int(case["samples"]) < int(case["microbatches"]) * pipelines(case),
    }


def _has(case, callback):
    return any(case[name].startswith(callback) for name in ("callback", "second_callback"))


def _refused_of_split(case, layers, ranks):
    of_head = ("auto", "head by rows", "head by columns", "vocabulary")
    has_first, splits_first = case["body"] in _MATCHED, layers not in of_head
    is_vocabulary = layers in ("vocabulary", "first to last")  # logits are not whole
    by_columns = layers in ("head by columns", "rows, then columns") or is_vocabulary
    too_few = by_columns and LOSSES[case["loss"]][2] < ranks
    too_few |= case["body"] == "attention" and splits_first and ranks > 2  # it has two heads
    is_missing = splits_first and not has_first
    is_missing |= layers.startswith("heads") and case["body"] != "attention"
    is_missing |= is_vocabulary and not case["loss"].startswith("SparseCategorical")
    return {
        "split": too_few or is_missing,
        "group": is_grouped(case) and (layers == "auto" or (case["group"] == "2" and case["workers"] == "3")),
        "wrapped": is_grouped(case) and case["wrapped"] == "by hand",
        "update": case["update"] == "replicated",
        "style": (layers == "auto" or is_vocabulary) and case["style"] == "subclassed",
        "metrics": is_vocabulary and case["metrics"] not in ("none", "accuracy"),
        "weighted_metrics": is_vocabulary and case["weighted_metrics"] not in ("none", "accuracy"),
        "outputs": is_vocabulary and case["outputs"] != "one",
        "step": is_vocabulary and case["step"] != "Keras's",
        "source": layers == "auto" and case["source"] not in ("arrays", "tensors", "batched dataset"),
        "regularizer": splits_first and case["regularizer"] != "none",
        "frozen": splits_first and case["frozen"] != "nothing",
        "constraint": case["constraint"] != "none",
        "optimizer": case["optimizer"] in _WHOLE_WEIGHTS,
        "gradient_accumulation_steps": case["gradient_accumulation_steps"] != "none",
        "scaled": case["scaled"] == "yes",
        "precision": case["precision"].startswith("mixed"),
        "resume": case["resume"] != "no",
        "use_ema": case["use_ema"] == "yes",
    }


DIMENSIONS = [
    Dimension("model_parallel", {"none": "", "pipeline": "1f1b", "pipeline, gpipe": "gpipe", "split": "split"}, 0.25),
    Dimension(
        "microbatches",
        {"1": "1", "2": "2", "4": "4"},
        0.75,
        fits=lambda case: case["model_parallel"].startswith("pipeline"),
    ),
    Dimension(
        "cut", {"weights": "weights", "time": "time"}, 0.2, fits=lambda case: case["model_parallel"].startswith("pipe")
    ),
    Dimension("scope", {"no": "", "yes": "yes"}, 0.35, fits=lambda case: case["model_parallel"].startswith("pipe")),
    # What cuts it, before its first fit().
    Dimension("called_first", {"fit": "", "evaluate": "evaluate()", "predict": "predict()"}, 0.4, fits=is_in_scope),
    # Of pipelines of 4 workers: what two of them divide of each stage.
    Dimension(
        "stage_split",
        {
            "none": "",
            **{name: source for name, source in LAYERS.items() if "auto" not in name and "vocab" not in source},
        },
        0.6,
        fits=lambda case: case["model_parallel"].startswith("pipe") and case["workers"] == "4",
    ),
    Dimension("split", LAYERS, 0.75, fits=lambda case: case["model_parallel"] == "split"),
    Dimension(
        "group", {"none": "", "all": '"all"', "2": "2"}, 0.5, fits=lambda case: case["model_parallel"] == "split"
    ),
]
