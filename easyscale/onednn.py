"""Whether TensorFlow computes with oneDNN's kernels, which it switches on by itself on some processors only.

They are faster on others, too. Processor time in ms of a step of stock Keras, one core of an AMD Milan, which has AVX2:

| | off | on |
|---|---|---|
| MLP of 24 M weights, SGD with momentum; Adam | 801; 1040 | 383; 475 |
| ResNet50, 16 images of 64 x 64 | 2463 | 986 |
| LSTM; transformer; conv net on digits | 154; 273; 19.4 | 115; 230; 18.6 |

Results differ by rounding, of a weight there by 1.8e-7. TensorFlow reads the variable when it is imported. Nothing
heavy is imported here.
"""

import functools
import platform
from collections.abc import Collection, Mapping

__all__ = ["ADVICE", "SWITCHED_ON", "are_off", "are_on", "features", "variables", "were_switched_on"]

_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
_BY_LAUNCHER = "EASYSCALE_SWITCHED_ONEDNN"
SWITCHED_ON = "TensorFlow computes with oneDNN's kernels, by `easyscale launch`; not so with --onednn off"
ADVICE = (
    "TensorFlow does without oneDNN's kernels on this processor, which are up to 2.5 times as fast. Set "
    f"{_VARIABLE}=1 before it is imported, or start by `easyscale launch`; {_VARIABLE}=0 if it is meant so"
)

# With one of these TensorFlow does so by itself, on Linux: `DefaultOneDnnPolicy` in its util/port.cc.
_BY_ITSELF = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
_FASTER = {"avx2", "fma"}  # what the processor of the table has


@functools.cache
def features() -> frozenset[str]:
    """Return what this processor can do, in the words of Linux; nothing where that is not known, or none of x86."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = next(line for line in file if line.startswith("flags"))
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(found.partition(":")[2].split() if platform.machine() == "x86_64" else ())


def are_off(environment: Mapping[str, str], has: Collection[str] | None = None) -> bool:
    """Return whether TensorFlow does without oneDNN though it is faster, and nobody has said so.

    Args:
        environment: That TensorFlow starts with.
        has: What the processor can do. Defaults to `None`: `features()`.

    Example:

    >>> are_off({}, ["avx2", "fma"]), are_off({}, ["avx2", "fma", "avx512_vnni"])
    (True, False)
    """
    has = set(features() if has is None else has)
    return _VARIABLE not in environment and has >= _FASTER and not _BY_ITSELF & has


def were_switched_on(environment: Mapping[str, str]) -> bool:
    """Return whether it was the launcher that had TensorFlow compute with oneDNN, and nobody has said so."""
    return environment.get(_BY_LAUNCHER) == "1" and are_on(environment)


def are_on(environment: Mapping[str, str]) -> bool:
    """Return whether TensorFlow computes with oneDNN."""
    said = environment.get(_VARIABLE, "").lower()
    return said in ("1", "true") or (said not in ("0", "false") and bool(_BY_ITSELF & features()))


def variables(choice: str, environment: Mapping[str, str], has: Collection[str] | None = None) -> dict[str, str]:
    """Return what has TensorFlow do as was chosen, in a process that starts with `environment` and these beside.

    Args:
        choice: String. `"on"`, `"off"`, or `"auto"`: on where it is faster and nobody has said anything.
        environment: Mapping.
        has: What the processor can do. Defaults to `None`: `features()`.

    Example:

    >>> variables("auto", {}, ["avx2", "fma"])
    {'TF_ENABLE_ONEDNN_OPTS': '1', 'EASYSCALE_SWITCHED_ONEDNN': '1'}
    """
    if choice == "auto":
        return {_VARIABLE: "1", _BY_LAUNCHER: "1"} if are_off(environment, has) else {}
    return {_VARIABLE: "1" if choice == "on" else "0"}
