"""What tests of other MPI runtimes share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # they import `mpis` by name

import mpis  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _installed():
    missing = [name for name in mpis.NAMES if not Path(mpis.python(name)).exists()]
    if missing:
        pytest.fail(f"`make test` installs {', '.join(missing)} into {Path(sys.prefix, 'mpis')}. Run it", pytrace=False)
