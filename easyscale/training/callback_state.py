"""State of callbacks: the plain attributes that have changed since `fit()` began.

A checkpoint may come from anywhere. So only numbers, arrays and containers of them are restored, and only to attributes
that hold such values in the script. A string could be the name of a file that a callback writes: no strings are
restored, except in attributes that the callback's class lists in `easyscale_texts` as holding no file names. Attributes
named like constructor arguments of Keras's or EasyScale's callbacks keep the script's values.
"""

import collections
import inspect
import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from easyscale.checkpoint.file import is_storable
from easyscale.errors import EasyScaleWarning
from easyscale.training.stateful import State

__all__ = ["CallbackStates", "TrustedCallbackStates", "collect", "put_back", "remember"]

# Keras's monitoring callbacks flip the sign of `min_delta` once per process, when they first see a metric.
_NOT_STATE = ("params", "model", "_model", "min_delta")
_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
_PLAIN = (type(None), bool, int, float, np.generic, np.ndarray, dict, *_CONTAINERS.values())
_DEEPEST = 30  # levels of nested containers


class CallbackStates:
    """The state of the callbacks of a `fit()`, as a part of a training state that may come from anywhere.

    Args:
        callbacks: List of the callbacks.

    Attributes:
        callbacks: The same; replaced when this worker becomes the chief.
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback]):
        self.callbacks = callbacks

    def change(self, callbacks: list[keras.callbacks.Callback]) -> None:
        """Replace the callbacks."""
        self.callbacks = callbacks

    def state(self) -> State:
        """Return their state, without strings that may be file names."""
        arrays: dict[str, np.ndarray] = {}
        return State(collect(self.callbacks, arrays), arrays)

    def load(self, state: State) -> None:
        """Restore a state that `state` returned."""
        put_back(self.callbacks, state.about, state.arrays)


class TrustedCallbackStates:
    """The state of callbacks for another worker of the job: with strings, without each worker's own `History`.

    Args:
        states: The `CallbackStates`.
    """

    def __init__(self, states: CallbackStates):
        self._states = states

    def state(self) -> State:
        """Return their state."""
        arrays: dict[str, np.ndarray] = {}
        callbacks = [
            callback for callback in self._states.callbacks if not isinstance(callback, keras.callbacks.History)
        ]
        return State(collect(callbacks, arrays, texts=True), arrays)

    def load(self, state: State) -> None:
        """Restore a state that `state` returned."""
        put_back(self._states.callbacks, state.about, state.arrays, texts=True)


def remember(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Record the attributes of callbacks before they start: those that do not change keep the script's values."""
    for callback in callbacks:
        vars(callback)["_easyscale_before"] = {
            name: json.dumps(value) for name, value in _plain(callback, None).items()
        }


def collect(
    callbacks: Iterable[keras.callbacks.Callback], arrays: dict[str, np.ndarray], texts: bool = False
) -> list[dict]:
    """Return the state of callbacks, for JSON; arrays are added to `arrays`.

    Args:
        callbacks: The callbacks.
        arrays: Dict to which arrays are added.
        texts: Bool. Whether to include strings, as for another worker of the same job. Defaults to `False`.
    """
    found = []
    for number, callback in enumerate(callbacks):
        before = vars(callback).get("_easyscale_before", {})
        state = _plain(callback, (f"callback/{number}", arrays))
        state = {name: value for name, value in state.items() if before.get(name) != json.dumps(value)}
        left_out = (
            [] if texts else [name for name, value in state.items() if _has_text(value, _texts_of(callback), name)]
        )
        state = {name: value for name, value in state.items() if name not in left_out}
        found.append({"class": _class_of(callback), "state": state})
        if left_out and not _is_library_class(type(callback)):
            found[-1]["texts"] = left_out
    return found


def put_back(
    callbacks: Iterable[keras.callbacks.Callback], saved: list[dict], arrays: Mapping, texts: bool = False
) -> None:
    """Restore the state of each callback; callbacks of the same class are matched in order.

    Args:
        callbacks: The callbacks.
        saved: The result of `collect`.
        arrays: The arrays that `collect` added.
        texts: Bool. Whether to restore strings as well, from another worker of the same job. Defaults to `False`.

    Raises:
        EasyScaleWarning: As a warning, if there were strings that are not restored.
    """
    remaining, lost = list(saved), []
    for callback in callbacks:
        local = next((state for state in remaining if state["class"] == _class_of(callback)), None)
        if local is not None:
            remaining.remove(local)
            lost += [f"{type(callback).__name__}.{name}" for name in local.get("texts", [])]
            for name, value in local["state"].items():
                if texts or (_may_set(callback, name) and not _has_text(value, _texts_of(callback), name)):
                    _set(callback, name, _decode(value, arrays))
    if lost:
        warnings.warn(
            f"texts that callbacks remember are not taken from a checkpoint: they might name files. Received: "
            f"{', '.join(map(str, lost))}. In the callback's class, name those that do not: easyscale_texts = "
            f"('{lost[0].rpartition('.')[2]}',)",
            EasyScaleWarning,
            stacklevel=2,
        )


def _set(callback: keras.callbacks.Callback, name: str, value: Any) -> None:
    now = getattr(callback, name, None)
    if isinstance(now, collections.deque) and isinstance(value, collections.deque):
        now.clear()
        now.extend(value)  # keeps its `maxlen`
    elif isinstance(now, dict) and isinstance(value, dict) and type(now) is not dict:  # such as a Counter
        now.clear()
        now.update(value)
    else:
        setattr(callback, name, value)


def _may_set(callback: keras.callbacks.Callback, name: str) -> bool:
    """Return whether a checkpoint may set an attribute: it is plain, and no constructor argument of a library class."""
    if not _is_state(name) or not name.isidentifier() or name.startswith("__"):
        return False
    if any(name in inspect.signature(cls).parameters for cls in type(callback).__mro__ if _is_library_class(cls)):
        return False
    of_class = inspect.getattr_static(type(callback), name, None)
    now = getattr(callback, name, None) if of_class is None or isinstance(of_class, _PLAIN) else of_class
    return isinstance(now, _PLAIN) or (isinstance(now, str) and name in _texts_of(callback))


def _is_library_class(cls: type) -> bool:
    """Return whether a class is Keras's or EasyScale's own."""
    return cls.__module__.partition(".")[0] in ("keras", __package__.partition(".")[0])


def _texts_of(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """Return the attributes whose strings are not file names, as declared by the callback's class."""
    if isinstance(callback, keras.callbacks.History):
        return ("history",)
    names = getattr(type(callback), "easyscale_texts", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _has_text(value: Any, allowed: tuple[str, ...], name: str) -> bool:
    """Return whether a value, encoded by `_encode`, has a string that may be a file name."""
    if isinstance(value, str):
        return name not in allowed
    if isinstance(value, dict):
        ((container, inside),) = value.items()
        if container == "array":
            return False
        inside = (
            inside.values() if container == "dict" else [item for _, item in inside] if container == "items" else inside
        )
        return any(_has_text(item, allowed, name) for item in inside)
    return False


def _is_state(name: str) -> bool:
    return name not in _NOT_STATE and not name.startswith("_easyscale")


def _class_of(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _plain(callback: keras.callbacks.Callback, destination: tuple[str, dict] | None) -> dict:
    """Return the attributes that are numbers, strings, arrays, or containers of them.

    Arrays are added to `destination`, a prefix for their names and a dict; if it is `None`, attributes with arrays are
    left out.
    """
    found: dict[str, Any] = {}
    if isinstance(callback, keras.callbacks.ProgbarLogger):  # what it shows belongs to this run
        return found
    for name, value in vars(callback).items():
        if _is_state(name):
            local: dict[str, np.ndarray] = {}
            value = dict(value) if isinstance(value, dict) else value
            try:
                found[name] = _encode(value, destination and f"{destination[0]}/{name}", local)
            except TypeError:  # a function, a model, a file
                continue
            if destination is not None:
                destination[1].update(local)
    return found


def _encode(value: Any, key: str | None, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float, str)):
        return value.item()
    if isinstance(value, np.ndarray) and key is not None and is_storable(value.dtype):
        name = f"{key}/{len(arrays)}"
        arrays[name] = value.copy()
        return {"array": name}
    if type(value) in _CONTAINERS.values():  # not subclasses, whose constructors may differ
        ordered = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return {type(value).__name__: [_encode(item, key, arrays) for item in ordered]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(item, key, arrays) for name, item in value.items()}}
    if type(value) is dict:
        pairs = [[_encode(name, None, arrays), _encode(item, key, arrays)] for name, item in value.items()]
        if not any(isinstance(name, dict) for name, _ in pairs):
            return {"items": pairs}
    raise TypeError(type(value))


def _decode(value: Any, arrays: Mapping, depth: int = 0) -> Any:
    if not isinstance(value, dict):
        return value
    if depth > _DEEPEST:
        raise ValueError("containers that are too deep")
    ((container, inside),) = value.items()
    if container == "array":
        return arrays[inside].copy()
    if container == "dict":
        return {name: _decode(item, arrays, depth + 1) for name, item in inside.items()}
    if container == "items":
        return {name: _decode(item, arrays, depth + 1) for name, item in inside}
    return _CONTAINERS[container](_decode(item, arrays, depth + 1) for item in inside)
