"""The table of docs/slow_networks.md agrees with each compression's own figures."""

import re
from pathlib import Path

import numpy as np
import pytest
from forms import own_forms

import easyscale
from easyscale import compression
from easyscale.compression import Packing

TEXT = (Path(__file__).parents[2] / "docs" / "slow_networks.md").read_text()
TABLE = TEXT.partition("## Which compression\n")[2].partition("## ")[0]
ROWS = dict(re.findall(r"^\| `(\w+)`[^|]*\| (.*?) \|$", TABLE, re.MULTILINE))
CHUNK, RING = 65_536, 2 * 100 * 7 / 8  # numbers of a ring's message; MB that each of 8 ranks sends of 100 MB


def test_there_is_a_row_for_each_form():
    assert sorted(ROWS) == sorted(own_forms())


@pytest.mark.parametrize("name", ROWS)
def test_its_bytes_are_those_of_the_form(name):
    share, of_ring, *_ = ROWS[name].split(" | ")
    if name == "power_sgd":
        part = compression.PowerSGD().rank * 2 / 1024
    else:
        form = compression.get(name)
        part = form.nbytes(CHUNK) / (4 * CHUNK) if isinstance(form, Packing) else form.share
        assert float(share) == pytest.approx(part, rel=0.005)
    assert float(of_ring.split(" MB")[0]) == pytest.approx(part * RING, rel=0.005)


def test_the_form_of_ones_own_is_one():
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if block.startswith("class")]
    made = {"easyscale": easyscale}
    exec(block, made)
    back = np.empty(3, "float32")
    made["Rounded"]().unpack(made["Rounded"]().pack(np.array([1.4, -2.6, 200], "float32")), back)
    np.testing.assert_array_equal(back, [1, -3, 127])
