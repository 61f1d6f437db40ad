"""Runs scripts of `scripts/`, one after the other in one process: each is given a folder of its own, and words.

python all_scripts.py FOLDER conv_net tf_data:shuffle ...
"""

import os
import runpy
import sys
from pathlib import Path

import tensorflow  # noqa: F401  # before Keras, as in many a tutorial: it looks whether Keras is there

folder, *names = sys.argv[1:]
for name in names:
    script, _, word = name.partition(":")
    path = Path(folder, name)
    path.mkdir(exist_ok=True)  # another rank may have made it
    sys.argv = [script, str(path), *filter(None, [word])]
    print(f"-- {name}", flush=True)
    runpy.run_path(os.path.join(os.path.dirname(__file__), "scripts", f"{script}.py"), run_name="__main__")
