"""Which model a script trains."""

from fuzz.dimension import Dimension

# The layers before the head; the first of them is frozen, shared, and regularized if anything is. `{weights}` is
# where arguments of a layer with weights go. Each stands with the shape of a sample, and "int" where it is of words.
BODIES = {
    "dense": ("(6,)", ["Dense(8, activation='relu'{weights})"]),
    "deep": ("(6,)", ["Dense(8, activation='tanh'{weights})", "Dense(7, activation='gelu')", "Dense(5)"]),
    "conv": ("(6, 6, 1)", ["Conv2D(3, 3, activation='relu'{weights})", "MaxPooling2D()", "Flatten()"]),
    "separable": ("(6, 4)", ["SeparableConv1D(4, 3{separable})", "Conv1DTranspose(2, 2)", "Flatten()"]),
    "embedding": ("(5,) int", ["Embedding(12, 4{embeddings})", "Flatten()"]),
    "large embedding": ("(3,) int", ["Embedding(300, 3{embeddings})", "Flatten()"]),
    "positions": ("(5, 4)", ["Dense(4{weights})", "Positions()", "Flatten()"]),
    "lstm": ("(4, 3)", ["LSTM(4{weights})"]),
    "recurrent": ("(4, 3)", ["SimpleRNN(4{weights})"]),
    "gru": ("(4, 3)", ["Bidirectional(GRU(3{weights}))"]),
    "attention": ("(4, 6)", ["Dense(6{weights})", "SelfAttention()", "GlobalAveragePooling1D()"]),
    "masked": ("(5,) int", ["Embedding(12, 4, mask_zero=True{embeddings})", "GRU(4)"]),
    "words": ("(5,) int", ["Embedding(12, 4, mask_zero=True{embeddings})", "GRU(4, return_sequences=True)"]),
}

_LOOKUPS = ("embedding", "large embedding")  # of no mask

# Behind the first layer.
NORMS = {
    "none": "",
    "batch": "BatchNormalization()",
    "synchronized batch": "BatchNormalization(synchronized=True)",
    "synchronized batch, slow": "BatchNormalization(synchronized=True, momentum=0.5, center=False)",
    "layer": "LayerNormalization()",
    "group": "GroupNormalization(1)",
    "unit": "UnitNormalization()",
    "rms": "RMSNormalization()",
    "spectral": "SpectralNormalization(keras.layers.Dense(5))",
}


def is_words(case):
    """Whether a sample is a sequence of integers."""
    return "int" in case.source("body")


def unsynchronized(case):
    """Whether each worker normalizes by its own part of the batch."""
    return case["norm"] == "batch"


def _one_to_one(case):
    return case["inputs"] == "one" and case["outputs"] == "one"


DIMENSIONS = [
    Dimension("body", {name: shape for name, (shape, _) in BODIES.items()}, 0.8),
    Dimension(  # the first layer is called again behind all others: in a pipeline, by another stage
        "inputs",
        {"one": "one", "two": "two", "shared": "shared", "shared, late": "shared, late"},
        0.15,
        fits=lambda case: case["inputs"] != "shared, late" or case["body"] in ("dense", *_LOOKUPS),
    ),
    Dimension("outputs", {"one": "one", "dict": "dict", "list": "list"}, 0.15),
    Dimension("norm", NORMS, 0.35),
    Dimension(
        "style",
        {name: name for name in ("functional", "sequential", "unbuilt", "subclassed", "nested")},
        0.5,
        fits=lambda case: case["style"] == "subclassed" or _one_to_one(case),
    ),
    Dimension(
        "regularizer",
        {"none": "", "l2": "'l2'", "l1_l2": "keras.regularizers.L1L2(0.01, 0.02)"},
        0.15,
    ),
    Dimension(
        "activity_regularizer", {"none": "", "l2": "'l2'"}, 0.08, "layer", lambda case: case["body"] != "separable"
    ),
    Dimension(
        "constraint",
        {
            "none": "",
            "max norm": "keras.constraints.MaxNorm(0.5)",
            "unit norm": "'unit_norm'",
            "non negative": "'non_neg'",
        },
        0.12,
    ),
    Dimension("frozen", {"nothing": "", "first layer": "first layer"}, 0.1),
    Dimension("add_loss", {"none": "", "mean": "mean"}, 0.1),
    Dimension(
        "step",
        {"Keras's": "", "calls super": "super", "own": "own", "own, in two": "own, in two"},
        0.2,
        fits=lambda case: case["step"] == "calls super" or case["outputs"] == "one",
    ),
    # What a step of one's own differentiates, and returns.
    Dimension(
        "own_loss",
        {
            "none": "",
            "of chosen elements": "chosen",
            "not reduced": "not reduced",
            "of compute_loss, all metrics": "all metrics",
        },
        0.12,
        fits=lambda case: case["step"] == "Keras's" and case["outputs"] == "one" and case["model_parallel"] == "none",
    ),
]
