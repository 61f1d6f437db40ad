"""Integrations of EasyScale with other systems, one folder each, imported lazily.

ray         workers on the nodes of a Ray cluster
"""

import importlib
from types import ModuleType

__all__ = ["ray"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"easyscale.integrations.{name}")
    raise AttributeError(f"module 'easyscale.integrations' has no attribute '{name}'")
