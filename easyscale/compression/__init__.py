"""In what form vectors travel between ranks.

half    fp16 and bf16: two bytes for each element

A new form is a new file in this folder, with a subclass of `Compression`; nothing else names it.
"""

import functools

from easyscale.compression.compression import Compression
from easyscale.compression.packed_messages import PackedMessages
from easyscale.discovery import classes_in

__all__ = ["Compression", "PackedMessages", "available"]


@functools.cache
def available() -> dict[str, type[Compression]]:
    """Return the forms that there are, by their names.

    Example:

    >>> available()["fp16"]
    <class 'easyscale.compression.half.FP16'>
    """
    forms = [form for form in classes_in(__name__) if issubclass(form, Compression) and "name" in vars(form)]
    return {form.name: form for form in sorted(forms, key=lambda form: form.name)}
