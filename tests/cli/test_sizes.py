"""Sizes as people write them."""

import pytest

from easyscale.cli import sizes

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4KB", 4000), ("4 kib", 4096), ("1.5MB", 1_500_000), ("100MB", 10**8), ("2GiB", 2 << 30), ("7", 7), ("8B", 8)],
)
def test_a_size_is_a_number_and_a_unit(text, nbytes):
    assert sizes.parse(text) == nbytes
    assert sizes.parse(sizes.text(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "4QB", "4 K B", "-1KB", "0", "1.5B", "1e3"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="size"):
        sizes.parse(text)
