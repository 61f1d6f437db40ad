"""How a drawn script says that its workers divide the model."""

from fuzz.case import Case
from fuzz.dimensions.parallel import has_split_stages, stages

__all__ = ["argument", "parallel"]


def parallel(case: Case) -> str:
    """Return the source of `parallel`, from which on `shard` and `local_batch` know how data are divided."""
    if case["model_parallel"] == "none":
        return ""
    group = f", {case.source('group')}" if case["group"] != "none" else ""
    given = f"Split({case.source('split')}{group})"
    if case["model_parallel"] != "split":
        schedule, cut = case.source("model_parallel"), case["cut"]
        split = ""
        if has_split_stages(case):
            split = f", easyscale.parallel.Split({case.source('stage_split')}, group=2)"
        given = f'Pipeline({stages(case)}, {case["microbatches"]}, "{schedule}", "{cut}"{split})'
    return f"""
parallel = easyscale.parallel.{given} if easyscale else None
if easyscale:
    easyscale.callbacks.Distribute(model_parallel=parallel)
"""


def argument(case: Case) -> str:
    """Return the argument of `Distribute`."""
    return "" if case["model_parallel"] == "none" else "model_parallel=parallel"
