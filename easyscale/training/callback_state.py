"""What callbacks remember: the plain attributes that have changed since `fit()` began.

A checkpoint may come from somewhere else. So what is taken from it is numbers, arrays and containers of them, for
attributes where the script has such things. A text could name a file that a callback writes: none is taken, unless the
callback's class says in `easyscale_texts` which attributes have texts that name no file. What constructors of Keras's
callbacks take is the script's.
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

# Keras's callbacks that monitor turn the sign of `min_delta` once in a process, when they first look at a metric.
_NOT_STATE = ("params", "model", "_model", "min_delta")
_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
_PLAIN = (type(None), bool, int, float, np.generic, np.ndarray, dict, *_CONTAINERS.values())
_DEEPEST = 30  # containers inside one another


class CallbackStates:
    """What the callbacks of a `fit()` remember, as a part of the state of a training that may come from anywhere.

    Args:
        callbacks: List of the callbacks.

    Attributes:
        callbacks: The same. Other ones, when this worker has become the chief.
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback]):
        self.callbacks = callbacks

    def change(self, callbacks: list[keras.callbacks.Callback]) -> None:
        """Take in that the callbacks are these from now on."""
        self.callbacks = callbacks

    def state(self) -> State:
        """Return what they remember, without texts."""
        arrays: dict[str, np.ndarray] = {}
        return State(collect(self.callbacks, arrays), arrays)

    def load(self, state: State) -> None:
        """Give them what `state` has returned."""
        put_back(self.callbacks, state.about, state.arrays)


class TrustedCallbackStates:
    """What callbacks remember, texts as well, as it goes to another worker of the job. Each has a `History` of its own.

    Args:
        states: The `CallbackStates`.
    """

    def __init__(self, states: CallbackStates):
        self._states = states

    def state(self) -> State:
        """Return what they remember."""
        arrays: dict[str, np.ndarray] = {}
        callbacks = [
            callback for callback in self._states.callbacks if not isinstance(callback, keras.callbacks.History)
        ]
        return State(collect(callbacks, arrays, texts=True), arrays)

    def load(self, state: State) -> None:
        """Give them what `state` has returned."""
        put_back(self._states.callbacks, state.about, state.arrays, texts=True)


def remember(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Note what callbacks are set to before they begin: that stays the script's."""
    for callback in callbacks:
        vars(callback)["_easyscale_before"] = {
            name: json.dumps(value) for name, value in _plain(callback, None).items()
        }


def collect(
    callbacks: Iterable[keras.callbacks.Callback], arrays: dict[str, np.ndarray], texts: bool = False
) -> list[dict]:
    """Return what callbacks remember, for JSON; arrays are added to `arrays`.

    Args:
        callbacks: The callbacks.
        arrays: Dict.
        texts: Bool. Whether texts are among it, as for another worker of the same job. Defaults to `False`.
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
    """Give each callback what the one of its class, the first to the first, remembered.

    Args:
        callbacks: The callbacks.
        saved: What `collect` has returned.
        arrays: The arrays that it has added.
        texts: Bool. Whether texts are taken as well, from another worker of the same job. Defaults to `False`.

    Raises:
        EasyScaleWarning: As a warning, if there were texts.
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
        now.extend(value)  # which keeps its longest length
    elif isinstance(now, dict) and isinstance(value, dict) and type(now) is not dict:  # such as a Counter
        now.clear()
        now.update(value)
    else:
        setattr(callback, name, value)


def _may_set(callback: keras.callbacks.Callback, name: str) -> bool:
    """Whether an attribute is one that a checkpoint may set: plain, and not among the settings of Keras's own."""
    if not _is_state(name) or not name.isidentifier() or name.startswith("__"):
        return False
    if any(name in inspect.signature(cls).parameters for cls in type(callback).__mro__ if _is_library_class(cls)):
        return False
    of_class = inspect.getattr_static(type(callback), name, None)
    now = getattr(callback, name, None) if of_class is None or isinstance(of_class, _PLAIN) else of_class
    return isinstance(now, _PLAIN) or (isinstance(now, str) and name in _texts_of(callback))


def _is_library_class(cls: type) -> bool:
    """Whether a class is Keras's or EasyScale's own."""
    return cls.__module__.partition(".")[0] in ("keras", __package__.partition(".")[0])


def _texts_of(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """The attributes whose texts name no file, as the callback's class says."""
    if isinstance(callback, keras.callbacks.History):
        return ("history",)
    names = getattr(type(callback), "easyscale_texts", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _has_text(value: Any, allowed: tuple[str, ...], name: str) -> bool:
    """Whether a value, as `_encode` returns it, has a text in it that is more than the name of something."""
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
    """The attributes that are numbers, texts, arrays, and lists of them.

    Arrays are added to `destination`, a prefix for their names and a dict; if it is `None`, attributes with arrays are
    left out.
    """
    found: dict[str, Any] = {}
    if isinstance(callback, keras.callbacks.ProgbarLogger):  # what it shows is of this run
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
    if type(value) in _CONTAINERS.values():  # not what is derived from them, which is made in other ways
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
