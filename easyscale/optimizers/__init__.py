"""Optimizers and schedules that Keras lacks, and helper modules for wrapped optimizers."""

import importlib
from typing import Any

__all__ = ["LARS", "SGD", "schedules"]

_WHERE = {"LARS": "easyscale.optimizers.lars", "SGD": "easyscale.optimizers.sgd"}


def __getattr__(name: str) -> Any:  # lazy, because importing Keras takes seconds
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
