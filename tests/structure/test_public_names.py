"""What is public, and what each module says of itself: names, types, docstrings, examples."""

import ast
import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
import types

import numpy as np
import pytest
from structure.package import LOADABLE, MODULES

import easyscale

# Types


def _hints(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [
                *node.args.posonlyargs,
                *node.args.args,
                *node.args.kwonlyargs,
                node.args.vararg,
                node.args.kwarg,
            ]
            yield from (argument.annotation for argument in arguments if argument and argument.annotation)
            yield from filter(None, [node.returns])
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation


@pytest.mark.parametrize("module", MODULES)
def test_no_hint_says_object(module):
    """It says nothing. A collaborator is of a class, or has a few methods that a `Protocol` names."""
    hints = [ast.unparse(hint) for hint in _hints(ast.parse(MODULES[module].read_text()))]
    assert [hint for hint in hints if re.search(r"\bobject\b", hint)] == []


# Public names


def test_every_public_name_is_there():
    assert len(set(easyscale.__all__)) == len(easyscale.__all__)
    for name in easyscale.__all__:
        assert getattr(easyscale, name) is not None
    assert set(dir(easyscale)) == set(easyscale.__all__)


def test_no_other_name_is_public():
    script = "import easyscale, inspect, json; print(json.dumps([n for n, v in vars(easyscale).items() if n[0] != '_' "
    script += "and not inspect.ismodule(v)]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert set(json.loads(done.stdout)) <= set(easyscale.__all__)
    with pytest.raises(AttributeError, match="module 'easyscale' has no attribute 'DistributedOptimiser'"):
        easyscale.DistributedOptimiser  # noqa: B018


@pytest.mark.parametrize("module", ["errors", "workers", "scaling", "data", "optimizer"])
def test_what_these_modules_offer_stands_in_the_package(module):
    for name in importlib.import_module(f"easyscale.{module}").__all__:
        assert name in easyscale.__all__
        assert getattr(easyscale, name) is getattr(importlib.import_module(f"easyscale.{module}"), name)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_for(module):
    docstring = ast.get_docstring(ast.parse(MODULES[module].read_text()))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":")) or "\n\n" not in docstring, "one line first"


@pytest.mark.parametrize("module", LOADABLE)
def test_every_public_function_and_class_has_a_docstring(module):
    loaded = importlib.import_module(module)
    for name in getattr(loaded, "__all__", ()):
        assert hasattr(loaded, name), f"{module}.__all__ names {name}, which is not there"
        value = getattr(loaded, name)
        is_alias = isinstance(value, types.GenericAlias)  # which Python 3.10 takes for a class
        if inspect.isfunction(value) or (inspect.isclass(value) and not is_alias):
            assert value.__doc__, f"{module}.{name}"


@pytest.mark.parametrize("module", [name for name in MODULES if ">>>" in MODULES[name].read_text()])
def test_examples_in_docstrings_run(module, run_ranks, monkeypatch, tmp_path):
    """Every example but those with a `model`; one that says "on worker 1 of 2" runs there."""
    from easyscale.exchange import registry

    assert module in LOADABLE
    easyscale.exchange.available()
    monkeypatch.setattr(registry._registry, "_registered", dict(registry._registry._registered))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("EASYSCALE_EXCHANGE", "EASYSCALE_REPLICATION"):
        monkeypatch.delenv(name, raising=False)
    loaded = importlib.import_module(module)
    known = {**vars(loaded), "easyscale": easyscale, "np": np, "keras": sys.modules.get("keras")}
    for test in doctest.DocTestFinder(exclude_empty=True).find(loaded, globs=known):
        if any(re.search(r"\bmodel\b", example.source) for example in test.examples):
            continue
        position = re.search(r"# on worker (\d+) of (\d+)", test.docstring or "")
        rank, size = map(int, position.groups()) if position else (0, 1)
        said = []
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        run_ranks(size, lambda comm: comm.rank == rank and runner.run(test, out=said.append))  # noqa: B023
        assert runner.failures == 0, "".join(said)
