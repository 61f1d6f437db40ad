"""What tests of Keras on JAX share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # they import `jax_ranks` by name

import jax_ranks  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _installed():
    if not Path(jax_ranks.PYTHON).exists():
        pytest.fail(f"`make test` installs jax into {Path(jax_ranks.PYTHON).parents[1]}. Run it", pytrace=False)
