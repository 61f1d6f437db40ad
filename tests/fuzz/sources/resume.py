"""How a drawn script is started twice: what the first start leaves, and what the second goes on from."""

from typing import NamedTuple

from fuzz.case import Case
from fuzz.dimensions.resume import is_cut_off

__all__ = ["InFit", "in_fit", "train"]


class InFit(NamedTuple):
    """What `fit` has for this: its first line, an argument of `Distribute`, and lines before and behind training."""

    begin: str = ""
    argument: str = ""
    before: str = ""
    behind: str = ""


def in_fit(case: Case) -> InFit:
    """Return the source of what there is for it in `fit`."""
    if case["resume"] == "no":
        return InFit()
    ends = f"ends and number == {case['resumed_fit']}"
    before = behind = ""
    if case.source("resume").startswith("on_"):
        before = f"callbacks += [Ends()] * ({ends})"
    elif case["resume"] == "fewer epochs":
        before = f"options |= {{'epochs': 1}} if {ends} else {{}}"
        behind = f"if easyscale and {ends}:\n        raise Ended"
    argument = f'checkpoint=f"{{folder}}/run{{number}}", every={case["every"]}, keep=100'
    return InFit("number = next(numbers)", argument, before, behind)


_ENDED = """

class Ended(Exception):
    pass

"""

_ENDS = """
class Ends(keras.callbacks.Callback):
    calls = 0

    def {hook}(self, *_, **__):
        self.calls += 1
        if self.calls == {count}:
            raise Ended

"""

_CUT_OFF = """

def train(easyscale, folder):
    uninterrupted = resumed = script(easyscale, folder, ends=False)
    if easyscale:
        for path in pathlib.Path(folder).glob("run*/step-*"):
            number, steps = int(path.parent.name[3:]), int(path.name.split("-")[1])
            if number > {fit} or (number == {fit} and steps > {count}):
                path.unlink()
        keras.backend.clear_session()
        resumed = script(easyscale, folder, ends=False)
    return {{"uninterrupted": uninterrupted, "resumed": resumed}}
"""

_RAISES = """

def train(easyscale, folder):
    if easyscale:
        with contextlib.suppress(Ended):
            script(easyscale, folder, ends=True)
        keras.backend.clear_session()
    return {"resumed": script(easyscale, folder, ends=False)}
"""


def train(case: Case) -> tuple[str, str]:
    """Return the source of what stands before `script`, and of `train`, which calls it."""
    hook, _, count = case.source("resume").rpartition(" ")
    if is_cut_off(case):
        return "", _CUT_OFF.format(fit=case["resumed_fit"], count=count)
    return _ENDED + (_ENDS.format(hook=hook, count=count) if hook else ""), _RAISES
