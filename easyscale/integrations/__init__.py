"""EasyScale inside of other systems, each in a folder of its own that is loaded when it is asked for.

ray         workers on the nodes of a Ray cluster
"""

import importlib
from types import ModuleType

__all__ = ["ray"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"easyscale.integrations.{name}")
    raise AttributeError(f"module 'easyscale.integrations' has no attribute '{name}'")
