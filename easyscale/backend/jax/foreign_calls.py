"""Calls of Python functions from compiled JAX code, through XLA's foreign function interface.

JAX's own callbacks deadlock in a process with one core: they wait for arrays that the thread they block should make.
A foreign function gets the addresses of buffers that are complete. XLA calls a C function; `ctypes` makes one of a
Python function, so nothing is compiled, and arrays share XLA's memory. The layouts below are those of
`xla/ffi/api/c_api.h`, which jaxlib includes.
"""

import ctypes
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from easyscale.layout.specs import Spec

__all__ = ["ForeignCall", "why_not"]

_MAJOR, _MINORS = 0, range(1, 6)  # versions of the interface with these layouts: jaxlib 0.4.34 to 0.12
_TARGET = "easyscale_call"
_METADATA = 1  # the type of the extension by which XLA asks for the version of the interface
_INTERNAL = 13  # XLA's error code for an exception of a called function

_Size, _Address = ctypes.c_size_t, ctypes.c_uint64


class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", _Size), ("type", ctypes.c_int), ("next", _Address)]


class _Version(ctypes.Structure):
    _fields_ = [("struct_size", _Size), ("extension", _Address), ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", _Size), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class _Buffer(ctypes.Structure):
    _fields_ = [("struct_size", _Size), ("extension", _Address), ("dtype", ctypes.c_int), ("data", _Address)]


class _Values(ctypes.Structure):  # arguments or results
    _fields_ = [
        ("struct_size", _Size),
        ("extension", _Address),
        ("size", ctypes.c_int64),
        ("types", _Address),
        ("values", _Address),
    ]


class _Attributes(ctypes.Structure):
    _fields_ = [*_Values._fields_[:4], ("names", _Address), ("values", _Address)]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64))]


class _Frame(ctypes.Structure):
    _fields_ = [
        ("struct_size", _Size),
        ("extension", ctypes.POINTER(_MetadataExtension)),
        ("api", _Address),
        ("context", _Address),
        ("stage", ctypes.c_int),
        ("arguments", _Values),
        ("results", _Values),
        ("attributes", _Attributes),
    ]


class _Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", _Size),
        ("extension", _Address),
        ("version", _Version),
        ("internal", _Address),
        ("create_error", ctypes.CFUNCTYPE(_Address, _Address)),
    ]


class _Error(ctypes.Structure):
    _fields_ = [("struct_size", _Size), ("extension", _Address), ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


_thread = threading.local()
_kept: list[Any] = []  # XLA calls these as long as the process lives
_calls: "weakref.WeakValueDictionary[int, ForeignCall]" = weakref.WeakValueDictionary()
_registration: list[str | None] = []  # the result of `_register`


class ForeignCall:
    """A function of NumPy arrays that compiled JAX code calls with its own buffers, without copying any.

    It can be called as long as this object lives.

    Args:
        function: Function. Takes a list of arrays, which it must not keep or write to, and a list of arrays to write
            its results to. If it raises an exception, the compiled code fails with an error that contains its text.
        inputs: The `Spec` of each input.
        results: The `Spec` of each result. There must be at least one, and its value must be used: otherwise the
            compiled code does not call the function.
    """

    def __init__(
        self,
        function: Callable[[list[np.ndarray], list[np.ndarray]], None],
        inputs: Sequence[Spec],
        results: Sequence[Spec],
    ):
        if reason := why_not():
            raise RuntimeError(f"compiled JAX code must be able to call Python. Received: {reason}")
        self._function, self._specs = function, (list(inputs), list(results))
        self._views: dict[tuple[int, int], np.ndarray] = {}
        self._call = jax.ffi.ffi_call(_TARGET, [jax.ShapeDtypeStruct(*spec) for spec in results])
        _calls[id(self)] = self

    def __call__(self, *tensors: jax.Array) -> Sequence[jax.Array]:
        """Return the results, in code that is being compiled."""
        return self._call(*tensors, call=np.int64(id(self)))

    def run(self, frame: _Frame) -> None:
        """Call the function with the buffers of a call."""
        inputs, results = self._specs
        self._function(self._arrays(frame.arguments, inputs, 0), self._arrays(frame.results, results, len(inputs)))

    def _arrays(self, values: _Values, specs: list[Spec], first: int) -> list[np.ndarray]:
        if not specs:
            return []
        arrays = []
        for number, buffer in enumerate((_Address * len(specs)).from_address(values.values), first):
            address = _Address.from_address(buffer + _Buffer.data.offset).value
            array = self._views.get((number, address))  # XLA mostly uses the same memory again
            if array is None:
                if len(self._views) > 8 * len(specs):
                    self._views.clear()
                array = self._views[number, address] = _array_at(address, specs[number - first])
            arrays.append(array)
        return arrays


def _array_at(address: int, spec: Spec) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    memory = (ctypes.c_char * (int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize)).from_address(address)
    return np.ndarray(spec.shape, dtype, memoryview(memory))


def why_not() -> str | None:
    """Return why compiled code cannot call Python, or `None` if it can. It cannot yet on a GPU."""
    if not _registration:
        _registration.append(_register())
    return _registration[0]


def _register() -> str | None:
    if jax.default_backend() != "cpu":
        return f"arrays on the platform '{jax.default_backend()}'"
    if not hasattr(jax, "ffi"):
        return f"jax {jax.__version__}, which has no `jax.ffi`"
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    major, minor = (int(re.findall(rf"define XLA_FFI_API_{part} (\d+)", header)[0]) for part in ("MAJOR", "MINOR"))
    if major != _MAJOR or minor not in _MINORS:
        known = f"{_MAJOR}.{_MINORS[0]} to {_MAJOR}.{_MINORS[-1]}"
        return f"version {major}.{minor} of XLA's foreign function interface (known: {known})"

    def handle(address: int) -> int:
        frame = _Frame.from_address(address)
        if frame.extension and frame.extension.contents.base.type == _METADATA:
            version = frame.extension.contents.metadata.contents.version
            version.major, version.minor = major, minor
            return 0
        if not hasattr(_thread, "state"):  # keep Python's state for this thread of XLA's: making one takes long
            _thread.state = ctypes.pythonapi.PyGILState_Ensure()
        try:
            scalar = _Scalar.from_address(_Address.from_address(frame.attributes.values).value)
            _calls[scalar.value.contents.value].run(frame)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".encode()
            failure = _Error(ctypes.sizeof(_Error), 0, text, _INTERNAL)
            return int(_Api.from_address(frame.api).create_error(ctypes.addressof(failure)))
        return 0

    handler = ctypes.CFUNCTYPE(_Address, _Address)(handle)
    _kept.append(handler)
    address = ctypes.cast(handler, ctypes.c_void_p).value
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(address), platform="cpu", api_version=1)
    return None
