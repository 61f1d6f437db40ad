"""Tests of a step on NumPy, with ranks that are threads: `KERAS_BACKEND=numpy pytest tests/numpy_backend`.

Keras has one backend a process, so these run in a process of their own; without the variable they are not collected.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

if os.environ.get("KERAS_BACKEND") == "numpy":
    import easyscale.backend

    sys.path.insert(0, str(FOLDER))
    easyscale.backend.__path__.append(str(FOLDER / "backends"))  # where its folder `numpy` is found, as any backend's
else:
    collect_ignore_glob = ["*"]
