"""Which data a script trains on, and how they come."""

from fuzz.dimension import Dimension

GLOBAL_BATCH = 12


def samples(case):
    """The number of samples that are trained on, without those that `validation_split` takes."""
    count = int(case["samples"])
    return count * 3 // 4 if case["validation"] == "split" else count


def batches(case):
    """The number of batches of one process in an epoch, if `steps_per_epoch` does not end it before."""
    return -(-samples(case) // GLOBAL_BATCH)


def uneven(case):
    """Whether batches are of different sizes."""
    return samples(case) % GLOBAL_BATCH > 0


def _is_divisible(case):
    """Whether each worker's last quarter is its part of everybody's."""
    return case["source"] == "arrays" and int(case["samples"]) % (4 * 12) == 0


def _source_fits(case):
    if case["source"] == "generator":  # of a worker without a part of the last batch it is a batch ahead
        last = int(case["samples"]) % GLOBAL_BATCH
        # Of a model that is not built yet Keras loses some, in-graph.
        built = case["replication"] != "in_graph" or case["style"] not in ("unbuilt", "subclassed")
        return case["outputs"] != "list" and built and (last == 0 or last >= int(case["workers"]))
    return case["outputs"] != "list" or case["source"] == "arrays"  # datasets have no lists


DIMENSIONS = [
    Dimension("samples", {"24": "24", "48": "48", "31": "31", "25": "25", "12": "12", "41": "41", "2": "2"}, 0.6),
    Dimension(
        "source",
        dict.fromkeys(
            [
                "arrays",
                "tensors",
                "batched dataset",
                "mapped dataset",
                "dataset of samples",
                "PyDataset",
                "generator",
            ],
            "",
        ),
        0.5,
        fits=_source_fits,
    ),
    # How a script says how many samples are in a step; EasyScale is told only under `--auto`.
    Dimension(
        "batch",
        {"12": "12", "7": "7", "default": "None", "by steps": "None"},
        0.5,
        fits=lambda case: case["auto"] == "yes" and case["source"] in ("arrays", "tensors"),
    ),
    # A layer that is adapted to what each worker has, and prepares the data.
    Dimension(
        "adapted",
        {"nothing": "", "to arrays": "arrays", "to a dataset": "dataset"},
        0.12,
        fits=lambda case: case["inputs"] == "one" and case["replication"] == "between_graph",
    ),
    Dimension(
        "steps_per_epoch",
        {"all": "", "1": "1", "2": "2"},
        0.1,
        "fit",
        lambda case: int(case["steps_per_epoch"]) <= batches(case) and case["batch"] != "by steps",
    ),
    Dimension(
        "validation",
        {"none": "", "data": "12", "uneven data": "13", "whole data": "13", "split": "0.25"},
        0.35,
        fits=lambda case: case["validation"] != "split" or _is_divisible(case),
    ),
    Dimension(
        "validation_freq",
        {"1": "", "2": "2", "[2]": "[2]"},
        0.2,
        "fit",
        lambda case: case["validation"] != "none",
    ),
]
