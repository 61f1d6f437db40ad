"""oneDNN kernels in TensorFlow, which enables them by default on some processors only.

They are faster on others, too. CPU time in ms of a step of stock Keras, on one core of an AMD Milan, which has AVX2:

| | off | on |
|---|---|---|
| MLP of 24 M weights, SGD with momentum; Adam | 801; 1040 | 383; 475 |
| ResNet50, 16 images of 64 x 64 | 2463 | 986 |
| LSTM; transformer; conv net on digits | 154; 273; 19.4 | 115; 230; 18.6 |

Results differ by rounding, 1.8e-7 for a weight in these runs. TensorFlow reads the environment variable on import. This
module has no heavy imports.
"""

import functools
import platform
from collections.abc import Collection, Mapping

__all__ = ["ADVICE", "are_off", "are_on", "describe", "features", "variables"]

_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
_BY_LAUNCHER = "EASYSCALE_SWITCHED_ONEDNN"
ADVICE = (
    "TensorFlow does without oneDNN's kernels on this processor, which are up to 2.5 times as fast. Set "
    f"{_VARIABLE}=1 before it is imported, or start by `easyscale launch`; {_VARIABLE}=0 if it is meant so"
)

# On Linux, TensorFlow enables oneDNN by default if a processor has one of these: `DefaultOneDnnPolicy` in util/port.cc.
_BY_ITSELF = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
_FASTER = {"avx2", "fma"}  # features of the processor in the table


@functools.cache
def features() -> frozenset[str]:
    """Return this processor's features by Linux's names; an empty set if they are unknown, or not on x86."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = next(line for line in file if line.startswith("flags"))
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(found.partition(":")[2].split() if platform.machine() == "x86_64" else ())


def are_off(environment: Mapping[str, str], has: Collection[str] | None = None) -> bool:
    """Return whether TensorFlow runs without oneDNN although that is slower, and nobody has set the variable.

    Args:
        environment: The environment that TensorFlow starts with.
        has: The processor's features. Defaults to `None`: `features()`.

    Example:

    >>> are_off({}, ["avx2", "fma"]), are_off({}, ["avx2", "fma", "avx512_vnni"])
    (True, False)
    """
    has = set(features() if has is None else has)
    return _VARIABLE not in environment and has >= _FASTER and not _BY_ITSELF & has


def describe(environment: Mapping[str, str]) -> str:
    """Return whether TensorFlow uses oneDNN, in words; and how to avoid it, if the launcher has enabled it.

    Example:

    >>> describe({"TF_ENABLE_ONEDNN_OPTS": "1", "EASYSCALE_SWITCHED_ONEDNN": "1"})
    'oneDNN on (unless --onednn off)'
    """
    if not are_on(environment):
        return "oneDNN off"
    return "oneDNN on" + " (unless --onednn off)" * (environment.get(_BY_LAUNCHER) == "1")


def are_on(environment: Mapping[str, str]) -> bool:
    """Return whether TensorFlow uses oneDNN."""
    said = environment.get(_VARIABLE, "").lower()
    return said in ("1", "true") or (said not in ("0", "false") and bool(_BY_ITSELF & features()))


def variables(choice: str, environment: Mapping[str, str], has: Collection[str] | None = None) -> dict[str, str]:
    """Return variables to add to `environment` so that a process that starts with it follows the choice.

    Args:
        choice: String. `"on"`, `"off"`, or `"auto"`: on where it is faster, unless the variable is set.
        environment: Mapping.
        has: The processor's features. Defaults to `None`: `features()`.

    Example:

    >>> variables("auto", {}, ["avx2", "fma"])
    {'TF_ENABLE_ONEDNN_OPTS': '1', 'EASYSCALE_SWITCHED_ONEDNN': '1'}
    """
    if choice == "auto":
        return {_VARIABLE: "1", _BY_LAUNCHER: "1"} if are_off(environment, has) else {}
    return {_VARIABLE: "1" if choice == "on" else "0"}
