"""Which optimizer a script has, and what that does to gradients and weights."""

from fuzz.dimension import Dimension

OPTIMIZERS = {
    "SGD": "keras.optimizers.SGD({rate}{arguments})",
    "momentum": "keras.optimizers.SGD({rate}, momentum=0.9{arguments})",
    "nesterov": "keras.optimizers.SGD({rate}, momentum=0.9, nesterov=True{arguments})",
    "easyscale.SGD": "easyscale_optimizers.SGD({rate}, momentum=0.9{arguments})",
    "Adam": "keras.optimizers.Adam({rate}{arguments})",
    "amsgrad": "keras.optimizers.Adam({rate}, amsgrad=True{arguments})",
    "AdamW": "keras.optimizers.AdamW({rate}{arguments})",
    "RMSprop": "keras.optimizers.RMSprop({rate}{arguments})",
    "centered": "keras.optimizers.RMSprop({rate}, centered=True, momentum=0.5{arguments})",
    "Adagrad": "keras.optimizers.Adagrad({rate}{arguments})",
    "Adadelta": "keras.optimizers.Adadelta({rate}{arguments})",
    "Adamax": "keras.optimizers.Adamax({rate}{arguments})",
    "Nadam": "keras.optimizers.Nadam({rate}{arguments})",
    "Ftrl": "keras.optimizers.Ftrl({rate}, l2_regularization_strength=0.1{arguments})",
    "Lion": "keras.optimizers.Lion({rate}{arguments})",
    "Lamb": "keras.optimizers.Lamb({rate}{arguments})",
    "Muon": "keras.optimizers.Muon({rate}{arguments})",
    "Adafactor": "keras.optimizers.Adafactor({rate}{arguments})",
    "LARS": "easyscale_optimizers.LARS({rate}, weight_decay=0.01{arguments})",
}

RATES = {
    "constant": "0.05",
    "exponential": "keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.8, staircase=True)",
    "pieces": "keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.02, 0.05, 0.01])",
    "cosine": "keras.optimizers.schedules.CosineDecay(0.01, 6, warmup_target=0.05, warmup_steps=2)",
}

CLIPS = {
    "none": "",
    "norm": "clipnorm=0.05",
    "value": "clipvalue=0.01",
    "global norm": "global_clipnorm=0.1",
}


def is_constant(case):
    """Whether callbacks can set the learning rate."""
    return case["rate"] == "constant"


DIMENSIONS = [
    Dimension("optimizer", OPTIMIZERS, 0.85),
    Dimension("rate", RATES, 0.15),
    Dimension("clip", CLIPS, 0.3),
    Dimension(
        "weight_decay",
        {"none": "", "0.1": "0.1"},
        0.2,
        "optimizer",
        lambda case: case["optimizer"] != "LARS",
    ),
    Dimension("exclude", {"nothing": "", "biases": "['bias']"}, 0.3, fits=lambda case: case["weight_decay"] != "none"),
    Dimension("use_ema", {"no": "", "yes": "True"}, 0.12, "optimizer"),
    Dimension(
        "ema_overwrite_frequency",
        {"never": "", "1": "1", "3": "3"},
        0.5,
        "optimizer",
        lambda case: case["use_ema"] == "yes",
    ),
    Dimension("gradient_accumulation_steps", {"none": "", "2": "2", "3": "3"}, 0.15, "optimizer"),
    Dimension("loss_scale_factor", {"none": "", "8": "8.0"}, 0.08, "optimizer"),
    Dimension("scaled", {"no": "", "yes": "keras.optimizers.LossScaleOptimizer({optimizer}, 64.0)"}, 0.06),
    Dimension(
        "precision",
        {"float64": "float64", "float32": "float32", "mixed_bfloat16": "mixed", "mixed_float16": "mixed"},
        0.1,
    ),
]
