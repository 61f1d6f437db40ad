"""In what form vectors travel between ranks.

half    fp16 and bf16: two bytes for each element

A new form is a new file in this folder, with a subclass of `Compression`; nothing else names it.
"""

from easyscale.compression.compression import Compression
from easyscale.compression.packed_messages import PackedMessages
from easyscale.discovery import Registry

__all__ = ["Compression", "PackedMessages", "available"]

_registry: Registry[Compression] = Registry("compression", __name__, base=Compression)


def available() -> dict[str, type[Compression]]:
    """Return the forms that there are, by their names.

    Example:

    >>> available()["fp16"]
    <class 'easyscale.compression.half.FP16'>
    """
    return _registry.classes()
