"""How elastic jobs that lose workers are started: the scripts of `tests/training`, on any backend."""

import sys
from pathlib import Path

from launches import run
from other_backends import Other

__all__ = ["LOSING", "LOSING_CHIEFS", "lose"]

LOSING = Path(__file__).with_name("training") / "losing.py"
LOSING_CHIEFS = Path(__file__).with_name("training") / "losing_chiefs.py"


def lose(size, *case, options=(), script=LOSING, other: Other | None = None):
    """Run a case of a script on so many ranks, of which some are killed; return the job, which has ended well."""
    launch = other.launch(size) if other else [sys.executable, "-m", "easyscale", "launch", "-n", str(size)]
    done = run([*launch, "--elastic", *options, str(script), *case], timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done
