"""A check that the copies of variables on a process's devices are equal."""

from collections.abc import Sequence

from easyscale import backend as backends
from easyscale.backend.tensorflow.in_graph import strategy as strategies
from easyscale.errors import DesyncError
from easyscale.layout.specs import Variable
from easyscale.step import equality

__all__ = ["check_equal_copies"]


def check_equal_copies(variables: Sequence[Variable], devices: Sequence[str], step: int) -> None:
    """Raise `DesyncError` if a device's copy of a variable differs from the first device's after a step."""

    def fingerprint(copy: Variable) -> int:
        return int(equality.fingerprint(backends.get(), [copy])[0])

    copies = [strategies.copies_of(variable) for variable in variables]
    for number in range(1, max(map(len, copies), default=1)):
        for variable, both in zip(variables, copies, strict=True):
            if len(both) > 1 and fingerprint(both[0]) != fingerprint(both[number]):
                raise DesyncError(
                    f"all devices must have the same weights. Received: `{equality.name_of(variable)}` on "
                    f"{devices[number]}, which differs from {devices[0]} after step {step}. Was it assigned inside a "
                    "step, or trained by an optimizer that is not an attribute of the model?"
                )
