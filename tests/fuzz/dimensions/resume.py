"""Whether a script is started a second time, and what the first start has left: training goes on from checkpoints."""

from fuzz.dimension import Dimension
from fuzz.dimensions.data import uneven
from fuzz.dimensions.distribution import waits

# How the first start ends -> (the hook of a callback that raises an exception on all ranks, the call of it that does).
# Behind a step: it comes to its end, and only the checkpoints of up to so many steps are left, as after a SIGKILL.
ENDS = {
    "no": ("", 0),
    "behind step 1": ("", 1),
    "behind step 2": ("", 2),
    "behind step 3": ("", 3),
    "behind step 5": ("", 5),
    "raises in step 2": ("on_train_batch_end", 2),
    "raises in step 3": ("on_train_batch_end", 3),
    "raises as an epoch begins": ("on_epoch_begin", 2),
    "raises as an epoch ends": ("on_epoch_end", 1),
    "raises in a validation": ("on_test_begin", 1),
    "fewer epochs": ("", 0),
}


def is_cut_off(case):
    """Whether the first start comes to its end, and what it has written last is taken away."""
    return case["resume"].startswith("behind")


def _resume_fits(case):
    if case["cut"] == "time":  # which is measured anew: sums over stages have other last bits
        return False
    if case["callback"] == "BackupAndRestore" or case["second_callback"] == "BackupAndRestore":
        return False  # which puts back another state: that of the last epoch's end
    hook = case.source("resume").partition(" ")[0]
    if hook == "on_train_batch_end":  # of ranks without data, and of servers, none is called
        return waits(case) and case["servers"] == "0" and not uneven(case)
    if hook == "on_test_begin":
        return waits(case) and case["validation"] != "none"
    if case["resume"] == "fewer epochs":  # the end of a fit() is the end of a training: averages become the weights
        at_end = ("EarlyStopping", "SwapEMAWeights", "SwapEMAWeights, on epoch")
        return case["use_ema"] == "no" and case["callback"] not in at_end and case["second_callback"] not in at_end
    return is_cut_off(case) or waits(case)


DIMENSIONS = [
    Dimension(
        "resume", {name: f"{hook} {count}".strip() for name, (hook, count) in ENDS.items()}, 0.12, fits=_resume_fits
    ),
    # Which fit() of the script that is; later ones have not begun.
    Dimension("resumed_fit", {"1": "1", "2": "2", "3": "3"}, 0.4, fits=lambda case: case["resume"] != "no"),
    Dimension("every", {"1": "1", "2": "2", "3": "3"}, 0.4, fits=lambda case: case["resume"] != "no"),
]
