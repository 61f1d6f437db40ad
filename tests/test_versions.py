"""Releases of libraries: those that were tried are used in silence, newer ones with a line, older ones not at all."""

import configparser
import re
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest

import easyscale
from easyscale import keras_internals, versions
from easyscale.errors import EasyScaleError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def loaded(monkeypatch):
    """A function that has a module of a name and a version be the one that is loaded."""

    def load(name, version):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(__version__=version))

    return load


@pytest.mark.parametrize("name", versions.TRIED)
def test_the_first_and_the_last_release_are_used_in_silence(loaded, name):
    for version in versions.TRIED[name]:
        for whole in (version, f"{version}.3", f"{version}.0.dev2026102704", f"{version}.1+cpu"):
            loaded("keras", "3.13.0")
            loaded(name, whole)
            versions.check(name)
            assert versions.untried(name) is None


@pytest.mark.parametrize(
    ("name", "version"), [("keras", "3.11.3"), ("tensorflow", "2.17.1"), ("torch", "2.3.1+cpu"), ("jax", "0.4.33")]
)
def test_an_earlier_one_is_refused_with_those_that_work(loaded, name, version):
    loaded("keras", "3.13.0")
    loaded(name, version)
    first, last = versions.TRIED[name]
    said = f"{name} must be one of {first} to {last}. Received: {name} {version}. Run: pip install '{name}>={first}'"
    with pytest.raises(EasyScaleError) as error:
        versions.check(name)
    assert str(error.value) == said


def test_a_later_one_is_told_of(loaded):
    loaded("keras", "3.17.0")
    loaded("jax", "1.0.0")
    line = versions.untried("jax")
    assert line.startswith("not tried with keras 3.17.0 (tried: 3.12 to 3.16) and jax 1.0.0 (tried: 0.4.34 to 0.12); ")


def test_a_fit_says_so_once(monkeypatch, capsys):
    last = "3.11"
    monkeypatch.setitem(versions.TRIED, "keras", ("3.0", last))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for verbose in (0, 2, 2):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=verbose, callbacks=[easyscale.callbacks.Distribute()])
    assert (
        capsys.readouterr().out.count(f"EasyScale: not tried with keras {keras.__version__} (tried: 3.0 to 3.11)") == 1
    )


def test_a_fit_refuses_one_that_is_known_not_to_work(monkeypatch):
    keras_internals.check.cache_clear()
    monkeypatch.setitem(versions.TRIED, "keras", ("4.0", "4.1"))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(EasyScaleError, match="keras must be one of 4.0 to 4.1"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[easyscale.callbacks.Distribute()])


def test_what_pip_installs_begins_with_the_first_one():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    asked = setup["options"]["install_requires"] + "".join(setup["options.extras_require"].values())
    for name, (first, _) in versions.TRIED.items():
        found = set(re.findall(rf"(?m)^{name}(?:-cpu)?>=([\d.]+)", asked))
        assert found == {first}
