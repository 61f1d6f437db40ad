"""Checks of the installed Python, Keras, backend and MPI, of GPUs, and of EasyScale's environment variables."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping

import easyscale
from easyscale import keras_backend, visible_gpus
from easyscale.cli.doctor.finding import Finding
from easyscale.cli.launch import runtimes
from easyscale.errors import EasyScaleError, LaunchError
from easyscale.exchange import registry
from easyscale.settings import Settings, is_known, variable

__all__ = ["examine", "mpi", "settings", "told", "versions"]

_BACKENDS = ("tensorflow", "torch", "jax")
_NEWEST = (3, 13)  # newest Python version that is tested


def examine() -> list[Finding]:
    """Check the installed software."""
    return [_python(), _keras(), _backend(), mpi(), _gpus(), _exchanges()]


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all hosts; packages that are not installed are left out."""
    found = {"Python": platform.python_version(), "easyscale": easyscale.__version__}
    for name in ("keras", keras_backend.chosen(), "numpy", "mpi4py"):
        if (version := _version(name)) is not None:
            found[name] = version
    with contextlib.suppress(LaunchError):
        found["MPI"] = runtimes.find().name
    return found


def settings() -> dict[str, str]:
    """Return the user's EasyScale environment variables that differ from the defaults.

    Raises:
        ValueError: If one has an invalid value.
    """
    said = Settings.read().variables()
    options = [variable(field.name) for field in dataclasses.fields(Settings) if field.metadata["option"]]
    return {name: said[name] for name in options if name in said}


def told() -> Finding:
    """Check EasyScale's environment variables on this host, which ranks on all hosts receive."""
    try:
        said = settings()
    except ValueError as error:
        return Finding("settings", str(error), "fails")
    text = ", ".join(f"{name}={value}" for name, value in said.items()) or "none"
    if unknown := [name for name in os.environ if name.startswith(variable("")) and not is_known(name)]:
        names = ", ".join(sorted(unknown))
        return Finding("settings", f"{text}; of no meaning: {names}", "warning", "See docs/settings.md for all names")
    return Finding("settings", text)


def _python() -> Finding:
    text = f"{platform.python_version()}, {sys.executable}; EasyScale {easyscale.__version__} on {platform.platform()}"
    if sys.version_info[:2] > _NEWEST:
        return Finding("Python", text, "warning", "Tested are versions up to " + ".".join(map(str, _NEWEST)))
    return Finding("Python", text)


def _keras() -> Finding:
    return _package("Keras", "keras", "pip install 'keras>={least}'")


def _backend() -> Finding:
    name = keras_backend.chosen()
    try:
        keras_backend.check_installed()
    except EasyScaleError as error:
        return Finding("backend", str(error), "fails")
    found = _package("backend", name, "pip install -U 'easyscale[" + name + "]'")
    others = [f"{other} {_version(other)}" for other in _BACKENDS if other != name and _is_there(other)]
    return found._replace(text=f"{found.text}; also installed: {', '.join(others)}") if others else found


def mpi() -> Finding:
    """Check the installed MPI."""
    try:
        runtime = runtimes.find()
    except LaunchError as error:
        return Finding("MPI", str(error), "fails")
    found = _package("MPI", "mpi4py", runtimes.INSTALL.removeprefix("Run: "))
    return found._replace(text=f"{runtime.name}, {runtime.program}; {found.text}")


def _gpus() -> Finding:
    names = visible_gpus.found(os.environ)
    return Finding("GPUs", f"{len(names)} of NVIDIA: {', '.join(names)}" if names else "none of NVIDIA")


def _exchanges() -> Finding:
    missing = registry.unavailable()
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in missing.items()]
    return Finding("exchanges", "; not here: ".join([", ".join(registry.available()), *reasons]))


def _package(topic: str, name: str, command: str) -> Finding:
    """Check that a package is installed and not too old."""
    version, least = _version(name), _least().get(name, "")
    cure = f"Run: {command.format(least=least)}"
    if version is None:
        if _is_there(name):
            return Finding(topic, f"{name}, of no version that is known")
        return Finding(topic, f"{name} is not installed", "fails", cure)
    if least and _numbers(version) < _numbers(least):
        return Finding(topic, f"{name} must be {least} or later. Received: {version}", "fails", cure)
    return Finding(topic, f"{name} {version}")


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(module: str) -> str | None:
    """Return the version of the package that provides a module, whatever its name; `None` if there is none."""
    for package in _packages().get(module, ()):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@functools.cache
def _least() -> dict[str, str]:
    """Return the minimum version of each package that EasyScale requires, by module name."""
    try:
        requirements = importlib.metadata.requires("easyscale") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    matches = [re.match(r"([\w-]+?)(?:-cpu)?>=([\d.]+)", requirement) for requirement in requirements]
    return {match[1]: match[2] for match in matches if match}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
