"""Steps of many workers on NumPy, and those of one process."""

import numpy as np
import pytest
from covering import drawn
from keras.optimizers import schedules
from steps import Case, assert_as_one_process, workers

EXCHANGES = {
    "ring": {},
    "tree": {},
    "shared_memory": {},
    "hierarchical": {"nodes": True},
    "parameter_server": {"servers": 2},
}
OPTIMIZERS = {
    "SGD": {},
    "SGD with momentum": {"momentum": 0.9, "nesterov": True},
    "SGD on a schedule": {"learning_rate": schedules.ExponentialDecay(0.1, 2, 0.5)},
    "SGD with averages": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
    "SGD of scaled losses": {"loss_scale_factor": 8.0, "weight_decay": 0.1},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adamax": {},
    "Ftrl": {"l2_regularization_strength": 0.1},
    "Lamb": {},
    "Lion": {},
    "Muon": {},
    "Nadam": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
}
LOOK_AT_WHOLE_WEIGHTS = ("Adafactor", "Lamb", "Muon", "SGD with averages")
CLIPPING = {"none": {}, "clipnorm": {"clipnorm": 0.2}, "global": {"global_clipnorm": 0.3}, "value": {"clipvalue": 0.05}}
FORMS = {"fp16": 2e-3, "bf16": 1e-2, "int8": 2e-2}  # and how far from exact gradients weights may be
LISTS = {
    "size": [1, 2, 3, 4, 5, 8],
    "exchange": list(EXCHANGES),
    "optimizer": list(OPTIMIZERS),
    "clipping": list(CLIPPING),
    "update": ["replicated", "sharded"],
    "accumulate": [None, 2],
    "division": ["even", "uneven", "ends early"],
    "gradient": ["dense", "sparse", "tied"],
    "bucket_bytes": [None, 200],
    "mixed": [False, True],
}


def allowed(row):
    """Return True unless EasyScale refuses this combination."""
    is_whole = row["accumulate"] or row["optimizer"] in LOOK_AT_WHOLE_WEIGHTS
    return not (row["update"] == "sharded" and is_whole)


ROWS = drawn(allowed, **LISTS)


def case_of(row):
    """Return the `Case` of a row."""
    options = {**OPTIMIZERS[row["optimizer"]], **CLIPPING[row["clipping"]]}
    if row["accumulate"]:
        options["gradient_accumulation_steps"] = row["accumulate"]
    size, exchange = row["size"], EXCHANGES[row["exchange"]]
    nodes = [size // 2, size - size // 2] if exchange.get("nodes") and size > 1 else None
    servers = exchange.get("servers", 0) if size > 1 else 0
    gradient = row["gradient"]
    return Case(
        size,
        row["optimizer"].partition(" ")[0],
        options,
        row["exchange"],
        row["update"],
        None,
        row["bucket_bytes"],
        row["division"],
        gradient == "sparse",
        gradient == "tied",
        row["mixed"],
        servers=servers,
        nodes=nodes,
    )


def _id(row):
    return "-".join(str(value) for value in row.values())


@pytest.mark.parametrize("row", ROWS, ids=_id)
def test_workers_take_the_steps_of_one_process(row):
    # Gradients are float64, but Keras takes roots of NumPy's float64 in float32, so norms by two ways differ by that.
    is_rough = row["mixed"] or (row["update"] == "sharded" and row["clipping"] in ("clipnorm", "global"))
    assert_as_one_process(case_of(row), *((1e-4, 1e-5) if is_rough else (1e-11, 1e-12)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("update", ["replicated", "sharded"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("exchange", "bucket_bytes"), [("ring", 100), ("tree", None), ("hierarchical", None)])
def test_gradients_may_travel_in_a_form(form, update, size, exchange, bucket_bytes):
    nodes = [size // 2, size - size // 2] if exchange == "hierarchical" and size > 1 else None
    case = Case(size, "SGD", {"momentum": 0.5}, exchange, update, form, bucket_bytes, "uneven", dtype="float32")
    tolerance = FORMS[form] if size > 1 else 1e-6
    assert_as_one_process(case._replace(nodes=nodes), tolerance, tolerance)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("options", [{}, {"global_clipnorm": 0.3}], ids=["plain", "clipped"])
@pytest.mark.parametrize("exchange", ["ring", "shared_memory"])
def test_a_sum_of_gradients_does_not_depend_on_who_has_which(size, options, exchange):
    """A worker's gradients weigh as many as its samples: so division says nothing about the steps."""
    cases = [Case(size, "Adam", options, exchange, "sharded", division=division) for division in ("even", "uneven")]
    even, uneven = (workers(case)[0] for case in cases)
    for one, other in zip(even, uneven, strict=True):
        np.testing.assert_allclose(one, other, 2e-6, 1e-6)
