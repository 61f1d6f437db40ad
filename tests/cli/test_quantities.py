"""Sizes and times as people write and read them."""

import pytest

from easyscale.quantities import (
    bytes_text,
    micros_text,
    millis_text,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_flops,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4KB", 4000), ("4 kib", 4096), ("1.5MB", 1_500_000), ("100MB", 10**8), ("2GiB", 2 << 30), ("7", 7), ("8B", 8)],
)
def test_a_size_is_a_number_and_a_unit(text, nbytes):
    assert parse_bytes(text) == nbytes
    assert parse_bytes(bytes_text(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "4QB", "4 K B", "-1KB", "0", "1.5B", "1e3", "9" * 400, "9" * 308 + "GB"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "0", "0.5", "-1", "9" * 400, "9" * 308 + "G"])
def test_other_counts_are_refused(text):
    with pytest.raises(ValueError, match="a count must be a number of 1 or more"):
        parse_count(text)


def test_short_times_have_more_digits():
    assert [millis_text(seconds) for seconds in (0, 5e-5, 0.0123, 12.3456)] == ["0.0", "0.050", "12.3", "12,345.6"]
    assert [micros_text(seconds) for seconds in (5e-6, 0.0123)] == ["5.0", "12,300"]


def test_quantities():
    assert parse_bandwidth("10Gbit") == parse_bandwidth("1.25GB/s") == parse_bandwidth("10 Gbit/s") == 1.25e9
    assert parse_bandwidth("25gbps") == 25e9 / 8
    assert parse_seconds("20us") == pytest.approx(2e-5)
    assert parse_seconds("1.5ms") == pytest.approx(1.5e-3)
    assert parse_flops("5TFLOPS") == 5e12
    for parse, text in (
        (parse_bandwidth, "0Gbit"),
        (parse_bandwidth, "1.2.3GB"),
        (parse_seconds, "5"),
        (parse_flops, "0"),
    ):
        with pytest.raises(ValueError, match="must be a number"):
            parse(text)
