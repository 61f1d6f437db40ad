"""Human-readable quantities: sizes (`4KB`, `1.5MB`), rates (`10Gbit`, `12.5GB/s`), times (`20us`), ...

KB is 1000 bytes, as in GB/s, and KiB 1024.
"""

import math
import re

__all__ = [
    "bytes_text",
    "micros_text",
    "millis_text",
    "parse_bandwidth",
    "parse_bytes",
    "parse_count",
    "parse_flops",
    "parse_seconds",
    "parse_steps",
]

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_PER_SECOND = {"ns": 1e9, "us": 1e6, "µs": 1e6, "ms": 1e3, "s": 1.0}


def parse_bytes(size: str) -> int:
    """Parse a size; return bytes.

    Raises:
        ValueError: If the format or the unit is unknown, or the size is not a whole number of bytes, 1 or more.

    Example:

    >>> parse_bytes("100MB"), parse_bytes("4 KiB")
    (100000000, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None:
        raise ValueError(f"a size must be a number and a unit. Received: '{size}'. Write for example 4KB or 100MB")
    units = {name.lower(): number for name, number in _BYTES.items()}
    unit = (match[2] or "B").lower()
    if unit not in units:
        raise ValueError(f"the unit of a size must be one of {list(_BYTES)}. Received: '{size}'")
    nbytes = float(match[1]) * units[unit]
    if not math.isfinite(nbytes):
        raise ValueError(f"a size must be less than 1e308 bytes. Received: {len(size)} digits. Write for example 4KB")
    if nbytes < 1 or nbytes != int(nbytes):
        raise ValueError(f"a size must be a whole number of bytes, 1 or more. Received: '{size}', {nbytes:g} bytes")
    return int(nbytes)


def parse_bandwidth(text: str) -> float:
    """Parse a bandwidth; return bytes per second.

    Raises:
        ValueError: If the format or the unit is unknown, or the bandwidth is not above zero.

    Example:

    >>> parse_bandwidth("10Gbit"), parse_bandwidth("12.5 GB/s"), parse_bandwidth("8Gbps"), parse_bandwidth("1GBps")
    (1250000000.0, 12500000000.0, 1000000000.0, 1000000000.0)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)(bit|b)(?:/s|ps)?\s*", text, re.IGNORECASE)
    number = _number(match)
    if match is None or not number:
        raise ValueError(
            f"a bandwidth must be a number above 0 and a unit. Received: '{text}'. Write 10Gbit or 1.2GB/s"
        )
    bits = match[3].lower() != "b" or match[3] == "b"  # b is a bit, B a byte
    return number * _PREFIXES[match[2].lower()] / (8 if bits else 1)


def parse_seconds(text: str) -> float:
    """Parse a time; return seconds.

    Raises:
        ValueError: If the format or the unit is unknown.

    Example:

    >>> parse_seconds("20us"), parse_seconds("1.5 ms"), parse_seconds("0s")
    (2e-05, 0.0015, 0.0)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*(ns|us|µs|ms|s)\s*", text)
    number = _number(match)
    if match is None or number is None:
        raise ValueError(
            f"a time must be a number and one of {list(_PER_SECOND)}. Received: '{text}'. Write 20us or 1.5ms"
        )
    return number / _PER_SECOND[match[2]]


def parse_steps(text: str) -> range:
    """Parse a half-open range of step numbers, from 0.

    Raises:
        ValueError: If the format is unknown, or the range is empty.

    Example:

    >>> parse_steps("10:20")
    range(10, 20)
    """
    match = re.fullmatch(r"\s*(\d{1,9}):(\d{1,9})\s*", text)
    found = range(int(match[1]), int(match[2])) if match else range(0)
    if not found:
        raise ValueError(
            f"steps must be the number of the first one, from 0, and of the first behind them. Received: '{text}'. "
            "Write for example 10:20"
        )
    return found


def parse_count(text: str) -> int:
    """Parse a count; return an integer.

    Raises:
        ValueError: If the format is unknown, or the count is below one.

    Example:

    >>> parse_count("38M"), parse_count("145578")
    (38000000, 145578)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmg]?)\s*", text, re.IGNORECASE)
    number = (_number(match) or 0) * _PREFIXES[match[2].lower()] if match else 0
    count = round(number) if math.isfinite(number) else 0
    if count < 1:
        raise ValueError(f"a count must be a number of 1 or more. Received: '{text}'. Write 38M or 145578")
    return count


def parse_flops(text: str) -> float:
    """Parse a speed; return floating-point operations per second.

    Raises:
        ValueError: If the format is unknown, or the speed is not above zero.

    Example:

    >>> parse_flops("5TFLOPS"), parse_flops("40G")
    (5000000000000.0, 40000000000.0)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmgtp]?)(?:flops?)?(?:/s)?\s*", text, re.IGNORECASE)
    number = _number(match)
    if match is None or not number:
        raise ValueError(f"a speed must be a number above 0. Received: '{text}'. Write 5TFLOPS or 40GFLOPS")
    return number * _PREFIXES[match[2].lower()]


def bytes_text(nbytes: int) -> str:
    """Format bytes in the shortest form that `parse_bytes` accepts.

    Example:

    >>> bytes_text(4000), bytes_text(1 << 20), bytes_text(1234)
    ('4KB', '1MiB', '1234B')
    """
    for name in ("GB", "GiB", "MB", "MiB", "KB", "KiB"):
        if nbytes % _BYTES[name] == 0:
            return f"{nbytes // _BYTES[name]}{name}"
    return f"{nbytes}B"


def millis_text(seconds: float) -> str:
    """Format seconds as milliseconds, with more digits for small values."""
    return f"{1e3 * seconds:,.1f}" if seconds >= 1e-4 or seconds == 0 else f"{1e3 * seconds:.3f}"


def micros_text(seconds: float) -> str:
    """Format seconds as microseconds, with more digits for small values."""
    return f"{1e6 * seconds:,.0f}" if seconds >= 1e-4 else f"{1e6 * seconds:.1f}"


def _number(match: re.Match[str] | None) -> float | None:
    """Return the first group of a match as a number; `None` if there is no match, or it is not a finite number."""
    try:
        number = float(match[1]) if match else math.inf
    except ValueError:
        return None
    return number if math.isfinite(number) else None
