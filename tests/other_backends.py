"""How ranks are started whose Keras has another backend, each in the environment that `make test` makes for it.

An environment of `make test-versions` has all backends, and no others beside it.
"""

import sys
from pathlib import Path

from launches import Start, mpirun

__all__ = ["BEGIN", "JAX", "LIMIT", "OTHERS", "TORCH", "Other"]

LIMIT = 120.0  # seconds for a job
# A job begins with this: data, a model, and `fit`.
BEGIN = """
import easyscale, keras, numpy as np
from easyscale.callbacks import Distribute
keras.utils.set_random_seed(easyscale.rank())
x, y = easyscale.shard(np.arange(48, dtype="float32").reshape(16, 3) / 48, np.ones((16, 1), "float32"))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
def fit(**options):
    model.fit(x, y, batch_size=easyscale.local_batch(8), verbose=0, **options)
"""


class Other:
    """A backend beside TensorFlow.

    Args:
        name: String. Keras's name for it.
        variables: Environment variables beside `KERAS_BACKEND`.

    Attributes:
        python: String. The program.
        start: `Start`. For `over_ranks`.
    """

    def __init__(self, name: str, **variables: str):
        beside = Path(sys.prefix, "backends", name, "bin", "python")
        self.name, self.python = name, str(beside if beside.exists() else sys.executable)
        self._with = ["env", *(f"{key}={value}" for key, value in {"KERAS_BACKEND": name, **variables}.items())]
        self.start = Start(name, (*self._with, *mpirun("{size}"), self.python))

    def launch(self, size: int) -> list[str]:
        """The command that starts Python on `size` ranks with `easyscale launch`; a script follows."""
        return [*self.easyscale, "launch", "-n", str(size)]

    @property
    def easyscale(self) -> list[str]:
        """The command `easyscale`; its own arguments follow."""
        path = f"PATH={Path(mpirun(1)[0]).parent}:/usr/bin:/bin"
        return [*self._with, path, self.python, "-m", "easyscale"]


TORCH = Other("torch")
# What XLA optimizes takes longer than what is computed here.
JAX = Other("jax", XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
OTHERS = {other.name: other for other in (TORCH, JAX)}
