"""Compression of gradients that travel between ranks.

packing         the base class of compressions that pack each message
half            fp16 and bf16: two bytes for each element
int8            one byte for each element
one_bit         one bit for each element
blocks          the part that these two share: a scale for each block of elements
top_k           the largest elements, with their indices
random_k        random elements, the same on all ranks
power_sgd       two thin factors of each matrix
error_feedback  what any compression leaves out of a gradient is added to the next one

To add a compression, add a file to this folder with a subclass of `Packing`, or of `Compression` if it does not pack
messages; no other change is needed.
"""

from typing import Any, Final, Literal, TypeAlias

from easyscale.compression.compression import Compression, Span, StepOfForm
from easyscale.compression.error_feedback import ErrorFeedback
from easyscale.compression.half import BF16, FP16
from easyscale.compression.int8 import Int8
from easyscale.compression.one_bit import OneBit
from easyscale.compression.packed_messages import PackedMessages
from easyscale.compression.packing import Packing
from easyscale.compression.power_sgd import PowerSGD
from easyscale.compression.random_k import RandomK
from easyscale.compression.top_k import TopK
from easyscale.discovery import Registry, make
from easyscale.settings import Settings, variable

__all__ = [
    "AUTO",
    "BF16",
    "FP16",
    "Compression",
    "ErrorFeedback",
    "Form",
    "Int8",
    "OneBit",
    "PackedMessages",
    "Packing",
    "PowerSGD",
    "RandomK",
    "Span",
    "StepOfForm",
    "TopK",
    "asked",
    "available",
    "get",
    "given",
    "names",
    "serialize",
]

AUTO: Final = "auto"
"""A form, or none, that is chosen by measuring.

Example:

>>> given(AUTO)
'auto'
"""

Form: TypeAlias = Compression | Literal["auto"] | None
"""What `given` returns: a form, `"auto"`, or `None` where gradients travel as they are.

Example:

>>> form: Form = given("int8")
"""

_KEEPS = "error_feedback"  # in a config: whether the compression is in an `ErrorFeedback`

_registry: Registry[Compression] = Registry(
    "compression", __name__, base=Compression, also=" or a `Compression`", besides=[AUTO]
)


def available() -> dict[str, type[Compression]]:
    """Return the classes of all compressions, by their names.

    Example:

    >>> available()["fp16"]
    <class 'easyscale.compression.half.FP16'>
    """
    return _registry.classes()


def names() -> list[str]:
    """Return the names that `given` accepts.

    Example:

    >>> "auto" in names()
    True
    """
    return [AUTO, *available()]


def get(identifier: str | dict | Compression | type[Compression] | None) -> Compression | None:
    """Return a `Compression`; for `None`, which means no compression, `None`.

    Args:
        identifier: The name of a compression, a `Compression`, a custom class, a config from `serialize`, or `None`.

    Raises:
        ValueError: If there is no compression of this name.

    Example:

    >>> get("bf16")
    BF16()
    """
    if isinstance(identifier, dict) and "name" in identifier:
        arguments = {name: value for name, value in identifier.items() if name not in ("name", _KEEPS)}
        form = make("compression", _registry.find(identifier["name"]), arguments)
        return ErrorFeedback(form) if identifier.get(_KEEPS) else form
    if identifier is None or isinstance(identifier, Compression):
        return identifier
    if isinstance(identifier, type) and issubclass(identifier, Compression):
        return make("compression", identifier, {})
    return make("compression", _registry.find(identifier), {})


def given(identifier: Any) -> Form:
    """Return the result of `get`, or `"auto"` if the compression is to be chosen later.

    Args:
        identifier: What `get` takes, `"auto"`, or the config of `"auto"` from `serialize`.

    Raises:
        ValueError: If there is no compression of this name.

    Example:

    >>> given("auto"), given("bf16")
    ('auto', BF16())
    """
    if isinstance(identifier, str | dict) and identifier in (AUTO, {"name": AUTO}):
        return AUTO
    return get(identifier)


def asked(identifier: Any) -> Form:
    """Return the result of `given`; for `None`, the compression that `EASYSCALE_COMPRESSION` names, if it is set.

    Args:
        identifier: What `given` takes.

    Raises:
        ValueError: If there is no compression of this name.

    Example:

    >>> asked("fp16")
    FP16()
    """
    if identifier is not None:
        return given(identifier)
    said = Settings.read().compression
    if said is not None and said not in names():
        raise _registry.error(said, list(available()), variable("compression"))
    return given(said)


def serialize(form: Form) -> dict[str, Any] | None:
    """Return a config, for a file, from which `given` rebuilds the compression.

    Args:
        form: A result of `given`.

    Example:

    >>> serialize(get("bf16"))
    {'name': 'bf16'}
    """
    if form is None:
        return None
    if form == AUTO:
        return {"name": AUTO}
    return {"name": form.plain.name, **form.plain.get_config()} | ({_KEEPS: True} if form.plain is not form else {})
