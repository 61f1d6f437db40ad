"""Sizes of data as people write them: `4KB`, `1.5MB`. KB is 1000 bytes, as in GB/s, and KiB 1024."""

import re

__all__ = ["parse", "text"]

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse(size: str) -> int:
    """Return the number of bytes.

    Raises:
        ValueError: If the form or the unit is not known, or the size is not a whole number of bytes, 1 or more.

    Example:

    >>> parse("100MB"), parse("4 KiB")
    (100000000, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None:
        raise ValueError(f"a size must be a number and a unit. Received: '{size}'. Write for example 4KB or 100MB")
    units = {name.lower(): number for name, number in _UNITS.items()}
    unit = (match[2] or "B").lower()
    if unit not in units:
        raise ValueError(f"the unit of a size must be one of {list(_UNITS)}. Received: '{size}'")
    nbytes = float(match[1]) * units[unit]
    if nbytes < 1 or nbytes != int(nbytes):
        raise ValueError(f"a size must be a whole number of bytes, 1 or more. Received: '{size}', {nbytes:g} bytes")
    return int(nbytes)


def text(nbytes: int) -> str:
    """Return the shortest form that `parse` understands.

    Example:

    >>> text(4000), text(1 << 20), text(1234)
    ('4KB', '1MiB', '1234B')
    """
    for name in ("GB", "GiB", "MB", "MiB", "KB", "KiB"):
        if nbytes % _UNITS[name] == 0:
            return f"{nbytes // _UNITS[name]}{name}"
    return f"{nbytes}B"
