"""What a script minimises, and by which weights."""

from fuzz.dimension import Dimension

# Loss -> its arguments, what it is given, and how many outputs it wants.
LOSSES = {
    "MeanSquaredError": ("", "numbers", 3),
    "MeanAbsoluteError": ("", "numbers", 3),
    "Huber": ("delta=0.5", "numbers", 2),
    "LogCosh": ("", "numbers", 1),
    "CosineSimilarity": ("", "numbers", 3),
    "SparseCategoricalCrossentropy": ("from_logits=True", "labels", 4),
    "SparseCategoricalCrossentropy, ignoring": ("from_logits=True, ignore_class=1", "labels", 4),
    "CategoricalCrossentropy": ("from_logits=True, label_smoothing=0.1", "one-hot", 4),
    "CategoricalFocalCrossentropy": ("from_logits=True", "one-hot", 3),
    "BinaryCrossentropy": ("from_logits=True", "bits", 2),
    "BinaryFocalCrossentropy": ("from_logits=True, apply_class_balancing=True", "bits", 1),
    "Hinge": ("", "bits", 2),
}

METRICS = {
    "none": "",
    "mean absolute error": "'mae'",
    "root mean squared error": "keras.metrics.RootMeanSquaredError()",
    "accuracy": "'accuracy'",
    "top 2": "keras.metrics.SparseTopKCategoricalAccuracy(2)",
    "auc": "keras.metrics.AUC(from_logits=True, num_thresholds=20)",
    "precision": "keras.metrics.Precision(thresholds=0.0)",
    "F1": "keras.metrics.F1Score(average='macro')",
    "r2": "keras.metrics.R2Score()",
}

_FOR = {
    "accuracy": ("labels", "one-hot"),
    "top 2": ("labels",),
    "auc": ("bits",),
    "precision": ("bits",),
    "F1": ("one-hot",),
    "r2": ("numbers",),
}


def target(case):
    """What the loss is given: `"numbers"`, `"labels"`, `"one-hot"` or `"bits"`."""
    return LOSSES[case["loss"]][1]


def _metric_fits(name):
    def fits(case):
        by_word = case["body"] == "words"  # several rows for a sample, which some metrics do not take
        known = _FOR.get(case[name], ("numbers", "one-hot", "bits"))
        return target(case) in known and not (by_word and case[name] in ("F1", "r2", "auc"))

    return fits


DIMENSIONS = [
    Dimension("loss", {name: name.partition(",")[0] for name in LOSSES}, 0.7),
    Dimension(
        "reduction",
        {name: f"'{name}'" if name else "" for name in ("", "sum", "mean", "mean_with_sample_weight")},
        0.25,
    ),
    Dimension("weights", {"none": "", "random": "random", "with zeros": "with zeros"}, 0.25),
    Dimension(
        "class_weight",
        {"none": "", "some": "{0: 0.5, 1: 2.0, 2: 1.0, 3: 0.0}"},
        0.12,
        "fit",
        lambda case: case["outputs"] == "one" and case["body"] != "words" and target(case) in ("labels", "one-hot"),
    ),
    Dimension("loss_weights", {"none": "", "some": "some"}, 0.5, fits=lambda case: case["outputs"] != "one"),
    Dimension("metrics", METRICS, 0.4, fits=_metric_fits("metrics")),
    Dimension("weighted_metrics", METRICS, 0.2, fits=_metric_fits("weighted_metrics")),
]
