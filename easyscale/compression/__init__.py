"""In what form gradients travel between ranks.

packing         the base of forms in which each message is packed
half            fp16 and bf16: two bytes for each element
int8            one byte for each element
one_bit         one bit for each element
blocks          what these two have in common: a scale for each block of elements
top_k           the largest elements, with their indices
random_k        elements that all ranks draw alike
power_sgd       two thin factors of each matrix
error_feedback  what any form leaves out of a gradient is added to the next one

A new form is a new file in this folder, with a subclass of `Packing`, or of `Compression` if it is no form of messages;
nothing else names it.
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

_KEEPS = "error_feedback"  # of a form in a file: whether there is some around it

_registry: Registry[Compression] = Registry(
    "compression", __name__, base=Compression, also=" or a `Compression`", besides=[AUTO]
)


def available() -> dict[str, type[Compression]]:
    """Return the forms that there are, by their names.

    Example:

    >>> available()["fp16"]
    <class 'easyscale.compression.half.FP16'>
    """
    return _registry.classes()


def names() -> list[str]:
    """Return the names that `given` takes.

    Example:

    >>> "auto" in names()
    True
    """
    return [AUTO, *available()]


def get(identifier: str | dict | Compression | type[Compression] | None) -> Compression | None:
    """Return a form; `None` for `None`: gradients travel as they are.

    Args:
        identifier: The name of a form, a `Compression`, a class of the user's own, what `serialize` has returned, or
            `None`.

    Raises:
        ValueError: If there is no form of this name.

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
    """Return what `get` does; and `"auto"`, or what a file says of it, as `"auto"`: the form is chosen later.

    Args:
        identifier: What `get` takes, or `"auto"`.

    Raises:
        ValueError: If there is no form of this name.

    Example:

    >>> given("auto"), given("bf16")
    ('auto', BF16())
    """
    if isinstance(identifier, str | dict) and identifier in (AUTO, {"name": AUTO}):
        return AUTO
    return get(identifier)


def asked(identifier: Any) -> Form:
    """Return what `given` does; for `None` the form that `EASYSCALE_COMPRESSION` says, if it says one.

    Args:
        identifier: What `given` takes.

    Raises:
        ValueError: If there is no form of this name.

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
    """Return what `get` makes the same form of, for a file.

    Args:
        form: What `given` has returned.

    Example:

    >>> serialize(get("bf16"))
    {'name': 'bf16'}
    """
    if form is None:
        return None
    if form == AUTO:
        return {"name": AUTO}
    return {"name": form.plain.name, **form.plain.get_config()} | ({_KEEPS: True} if form.plain is not form else {})
