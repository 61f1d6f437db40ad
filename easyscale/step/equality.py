"""Makes variables equal on all workers, and checks that they are."""

import hashlib
from collections.abc import Sequence

import numpy as np

from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.layout.specs import Variable
from easyscale.step.agreement import first_difference

__all__ = ["check_equal", "fingerprint", "name_of", "start_equal"]


def start_equal(communicator: Communicator, backend: Backend, variables: Sequence[Variable], root: int = 0) -> None:
    """Overwrite all workers' `variables` with those of rank `root`; see `OneReplica.start_equal`."""
    for variable in variables:
        if not backend.has_value(variable):
            raise ValueError(
                "a model must be built before its first step, so that all workers can start equal. Received: "
                f"no value of {name_of(variable)}. Give it an `Input`, call "
                "`model.build(...)`, or pass `easyscale.callbacks.Distribute()` to `fit()`"
            )
    views = [backend.view(variable) for variable in variables]
    all_ranks = communicator.all_gather_object([f"{view.shape} {view.dtype}" for view in views])
    if any(other != all_ranks[0] for other in all_ranks):
        told = dict(zip(communicator.membership.initial_ranks, all_ranks, strict=True))
        raise DesyncError(
            "all ranks must build the same model and optimizer. Received: variables "
            f"{first_difference(told)}. Run one script on all ranks"
        )
    views.clear()
    for variable in variables:
        value = np.array(backend.view(variable), order="C")  # one copy at a time: variables may fill the memory
        if value.size and value.dtype != object:
            communicator.broadcast(value.reshape(-1), root)
            variable.assign(value)


def fingerprint(backend: Backend, variables: Sequence[Variable]) -> np.ndarray:
    """Return, for each variable, the sum of its 64-bit words modulo 2^64. Reads the memory once, without a copy."""
    return np.array([_sum(_bytes(backend.view(variable))) for variable in variables], np.uint64)


def check_equal(communicator: Communicator, backend: Backend, variables: Sequence[Variable], step: int) -> np.ndarray:
    """Raise `DesyncError` on all ranks unless their `variables` have the same bits; else return their fingerprint.

    A rank reads its variables once, and sends 8 bytes for all of them together.

    Args:
        communicator: The `Communicator`.
        backend: The `Backend`.
        variables: The variables, the same on all ranks.
        step: Int. The step after which they are compared, for the error.
    """
    local = fingerprint(backend, variables)
    digest = hashlib.blake2b(local.tobytes(), digest_size=8).digest()
    digests = communicator.all_gather_rows(np.frombuffer(digest, "i8"))
    if (digests != digests[0]).any():
        _explain(communicator, backend, variables, local, step)
    return local


def _explain(
    communicator: Communicator, backend: Backend, variables: Sequence[Variable], local: np.ndarray, step: int
) -> None:
    all_ranks = communicator.all_gather_rows(local)
    differs = all_ranks != all_ranks[0]
    first = int(np.flatnonzero(differs.any(axis=0))[0])
    numbers = communicator.membership.initial_ranks
    ranks = [numbers[rank] for rank in np.flatnonzero(differs[:, first])]
    value = np.array(backend.view(variables[first]))
    chiefs = value.reshape(-1).copy()
    communicator.broadcast(chiefs)
    distance = np.abs(value.reshape(-1).astype("float64") - chiefs.astype("float64")).max()
    distance = communicator.all_gather_rows(np.array([distance])).max()
    count = int(differs.any(axis=0).sum())
    raise DesyncError(
        f"all ranks must have the same weights. Received: `{name_of(variables[first])}` "
        f"{f'and {count - 1} more ' if count > 1 else ''}of rank{'s' * (len(ranks) > 1)} "
        f"{', '.join(map(str, ranks))} differ{'s' if count == 1 else ''} from rank {numbers[0]} after step "
        f"{step} (max {distance:.1e}). Was it assigned on some ranks only, as in a hook of a step for which others had "
        "no data, moved by a worker's own gradients and not restored from a copy, or trained by an optimizer that is "
        "not an attribute of the model?"
    )


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _sum(memory: np.ndarray) -> np.uint64:
    whole = memory.size // 8 * 8
    words = memory[:whole].view(np.uint64).sum(dtype=np.uint64)
    return words + np.frombuffer(memory[whole:].tobytes().ljust(8, b"\0"), np.uint64)[0]


def name_of(variable: Variable) -> str:
    """Return the path of a Keras variable, or the name of a TensorFlow variable."""
    return str(getattr(variable, "path", variable.name))
