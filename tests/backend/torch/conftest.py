"""What tests of Keras on PyTorch share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # they import `torch_ranks` by name

import torch_ranks  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _installed():
    if not Path(torch_ranks.PYTHON).exists():
        pytest.fail(f"`make test` installs torch into {Path(torch_ranks.PYTHON).parents[1]}. Run it", pytrace=False)
