"""What callbacks remember: the plain attributes that have changed since `fit()` began."""

import json
from collections.abc import Iterable, Mapping

import keras
import numpy as np

from easyscale.checkpoints import is_storable

__all__ = ["collect", "put_back", "remember"]

# Keras's callbacks that monitor turn the sign of `min_delta` once in a process, when they first look at a metric.
_NOT_STATE = ("params", "model", "_model", "min_delta")


def remember(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Note what callbacks are set to before they begin: that stays the script's."""
    for one in callbacks:
        vars(one)["_easyscale_before"] = {name: json.dumps(value) for name, value in _plain(one, None).items()}


def collect(callbacks: Iterable[keras.callbacks.Callback], arrays: dict[str, np.ndarray]) -> list[dict]:
    """Return what callbacks remember, for JSON; arrays are added to `arrays`."""
    found = []
    for number, one in enumerate(callbacks):
        before = vars(one).get("_easyscale_before", {})
        state = _plain(one, (f"callback/{number}", arrays))
        state = {name: value for name, value in state.items() if before.get(name) != json.dumps(value)}
        found.append({"class": _class_of(one), "state": state})
    return found


def put_back(callbacks: Iterable[keras.callbacks.Callback], saved: list[dict], arrays: Mapping) -> None:
    """Give each callback what the one of its class, the first to the first, remembered."""
    left = list(saved)
    for one in callbacks:
        mine = next((other for other in left if other["class"] == _class_of(one)), None)
        if mine is not None:
            left.remove(mine)
            for name, value in mine["state"].items():
                value, now = _decode(value, arrays), getattr(one, name, None)
                if isinstance(now, dict) and type(now) is not dict:  # such as a Counter
                    now.clear()
                    now.update(value)
                else:
                    setattr(one, name, value)


def _class_of(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _plain(callback: keras.callbacks.Callback, place: tuple[str, dict] | None) -> dict:
    """The attributes that are numbers, texts, arrays, and lists of them. Without a place, those without arrays."""
    found = {}
    if isinstance(callback, keras.callbacks.ProgbarLogger):  # what it shows is of this run
        return found
    for name, value in vars(callback).items():
        if name not in _NOT_STATE and not name.startswith("_easyscale"):
            mine = {}
            value = dict(value) if isinstance(value, dict) else value
            try:
                found[name] = _encode(value, place and f"{place[0]}/{name}", mine)
            except TypeError:  # a function, a model, a file
                continue
            if place is not None:
                place[1].update(mine)
    return found


def _encode(value: object, key: str | None, arrays: dict) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float, str)):
        return value.item()
    if isinstance(value, np.ndarray) and key is not None and is_storable(value.dtype):
        name = f"{key}/{len(arrays)}"
        arrays[name] = value.copy()
        return {"array": name}
    if type(value) in (list, tuple):  # not what is derived from them, which is made in other ways
        return {type(value).__name__: [_encode(one, key, arrays) for one in value]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(one, key, arrays) for name, one in value.items()}}
    raise TypeError(type(value))


def _decode(value: object, arrays: Mapping) -> object:
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "array":
        return arrays[inside].copy()
    if kind == "dict":
        return {name: _decode(one, arrays) for name, one in inside.items()}
    return {"list": list, "tuple": tuple}[kind](_decode(one, arrays) for one in inside)
