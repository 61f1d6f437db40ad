"""What tests of other backends than TensorFlow share."""

import textwrap
from pathlib import Path

import pytest
from launches import environment, run
from other_backends import LIMIT, OTHERS


@pytest.fixture(scope="module", autouse=True)
def _installed(request):
    other = OTHERS.get(request.path.parent.name)
    if other is not None and not Path(other.python).exists():
        pytest.fail(f"`make test` installs {other.name} into {Path(other.python).parents[1]}. Run it", pytrace=False)


@pytest.fixture
def job(request, tmp_path):
    """Run a script on two ranks, or `size`, of the folder's backend, and return the finished process."""

    def run_script(script, *options, arguments=(), size=2):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        launch = OTHERS[request.path.parent.name].launch(size)
        return run([*launch, *options, str(path), *arguments], LIMIT, environment())

    return run_script
