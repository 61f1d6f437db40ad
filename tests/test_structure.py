"""The rules of DESIGN.md section 3, and what holds for every module: who imports whom, and what is public."""

import ast
import configparser
import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import easyscale

ROOT = Path(__file__).parents[1]
# Folders at the top of the repository that install inside the package.
FOLDERS = {"easyscale": "easyscale", "callbacks": "easyscale.callbacks", "cli": "easyscale.cli"}


def _modules():
    """Name -> file of every module."""
    found = {}
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            inside = file.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in inside if part != "__init__")])] = file
    return found


MODULES = _modules()
TREES = {module: ast.parse(file.read_text()) for module, file in MODULES.items()}
every_module = pytest.mark.parametrize("module", MODULES)


def _imports(module):
    """The names of all modules that a module imports, also inside functions; `from a import b` counts as `a.b`, too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import; it must be absolute"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [name for name in inside if name in MODULES] or [node.module]


def _root(name):
    return name.partition(".")[0]


# Each part imports only parts that stand below it. A program that stands in a part may be named by itself.
LAYERS = [
    {"discovery", "errors", "layout", "onednn", "settings", "progress", "when_imported"},
    {"keras_backend", "launchers"},
    {"called", "elastic", "checkpoint", "keras_internals"},
    {"communicator"},
    {"compression", "mesh"},
    {"exchange", "separate", "workers", "data", "elastic.standby"},
    {"scaling", "serving", "choice", "optimizers", "backend.base"},
    {"step"},
    {"backend"},
    {"replication"},
    {"update"},
    {"optimizer", "parallel"},
    {"training"},
    {"callbacks"},
    {"bench", "verify"},
    {"cli"},
    {"__main__"},
]


def _layer(module):
    names = module.split(".")[1:]
    part = ".".join(names) if any(".".join(names) in parts for parts in LAYERS) else names[0]
    layers = [number for number, parts in enumerate(LAYERS) if part in parts]
    assert layers, f"{module} is in no layer: say in {Path(__file__).name} where it stands"
    return layers[0], part


@pytest.mark.parametrize("module", [name for name in MODULES if name != "easyscale"])
def test_imports_go_one_way(module):
    layer, part = _layer(module)
    for other in _imports(module):
        if _root(other) == "easyscale" and other != "easyscale":
            below, other_part = _layer(other)
            assert below < layer or other_part == part, f"{module} imports {other}, which does not stand below it"


ONLY_IN = {
    "tensorflow": ["easyscale.backend.tensorflow", "easyscale.data.tf_dataset"],
    "torch": ["easyscale.backend.torch"],
    "keras": [
        "easyscale.backend",
        "easyscale.keras_internals",
        "easyscale.optimizer",
        "easyscale.optimizers",
        "easyscale.parallel",
        "easyscale.update",
        "easyscale.training",
        "easyscale.callbacks",
        "easyscale.bench",
        "easyscale.verify",
        "easyscale.data.keras_dataset",
    ],
    "mpi4py": ["easyscale.communicator.mpi"],
}


def test_callbacks_are_what_a_user_puts_into_fit():
    """What they need beside has a place of its own."""
    public = importlib.import_module("easyscale.callbacks").__all__
    defining = {getattr(easyscale.callbacks, name).__module__ for name in public}
    assert {name for name in MODULES if name.startswith("easyscale.callbacks.")} == defining


@pytest.mark.parametrize("foreign", ONLY_IN)
def test_a_library_is_imported_only_where_its_place_is(foreign):
    allowed = ONLY_IN[foreign]
    importing = [module for module in MODULES if foreign in map(_root, _imports(module))]
    assert importing, f"nobody imports {foreign}: this test looks in the wrong place"
    for module in importing:
        assert any(module == place or module.startswith(place + ".") for place in allowed), f"{module}: {foreign}"


# Private names of Keras and TensorFlow, each behind a function.
OF_OTHERS = {"easyscale.keras_internals", "easyscale.backend.tensorflow.internals"}
# Begin with an underscore and are documented: Python's own.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_getframe", "_replace"}
ACCESS = {"delattr", "getattr", "hasattr", "object.__setattr__", "setattr"}


def _own_names(tree):
    """What a module gives a name: functions, classes, variables, and attributes of `self` or `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _is_own(value):
    return ast.unparse(value) in ("self", "cls", "super()")


def _accesses(tree):
    """Each object of which a module reads or sets an attribute, with the attribute's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.value, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ACCESS and isinstance(node.args[1], ast.Constant):
            yield node.args[0], node.args[1].value
        elif found := re.match(r"vars\((\w+)\)(?:\.get\(|\[)'(\w+)'", ast.unparse(node) if _is_look(node) else ""):
            yield ast.Name(found[1]), found[2]


def _is_look(node):
    return isinstance(node, (ast.Call, ast.Subscript))


def _foreign(tree):
    """The private names that a module uses of what it does not define, and private modules that it imports."""
    own = {*_own_names(tree), *DOCUMENTED}
    for value, name in _accesses(tree):
        is_private = name.startswith("_") and not name.startswith(("__", "_easyscale"))
        if is_private and name not in own and not _is_own(value):
            yield name
    for node in ast.walk(tree):
        imported = [node.module] if isinstance(node, ast.ImportFrom) else []
        imported += [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        yield from (name for name in imported if re.match(r"_|keras\.src|tensorflow\.(python|core|compiler)", name))


def test_private_names_of_others_stand_in_few_files():
    """An attribute that begins with `_` belongs to a class of the same file, or is not for others.

    A base class of Keras's is `self` to what inherits from it; `keras_internals` checks those names, too.
    """
    assert {module: found for module in {*MODULES} - OF_OTHERS if (found := {*_foreign(TREES[module])})} == {}
    assert all({*_foreign(TREES[module])} for module in OF_OTHERS)


@pytest.mark.parametrize(
    "code, found",
    [
        ("from keras.src import losses", {"keras.src"}),
        ("from tensorflow.python.distribute import values", {"tensorflow.python.distribute"}),
        ("optimizer._iterations.assign(0)", {"_iterations"}),
        ("getattr(optimizer, '_iterations', None)", {"_iterations"}),
        ("object.__setattr__(optimizer, '_iterations', 0)", {"_iterations"}),
        ("vars(model).get('_distribute_strategy')", {"_distribute_strategy"}),
        ("vars(model)['_distribute_strategy']", {"_distribute_strategy"}),
        ("class A:\n def f(self, other):\n  self._x = other._x", set()),
        ("class A(keras.Model):\n def f(self):\n  return self._layers + super()._layers", set()),
        ("record._replace(a=1), record.__class__, model._easyscale", set()),
    ],
)
def test_a_private_name_is_found(code, found):
    assert {*_foreign(ast.parse(code))} == found


def test_every_library_that_is_imported_is_a_dependency():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lists = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    names = {re.match(r"[\w-]+", line)[0] for one in lists for line in one.splitlines() if line and line[0] != "#"}
    known = {"tensorflow" if name == "tensorflow-cpu" else name for name in names}
    known |= {"easyscale", *sys.stdlib_module_names}
    imported = {_root(name) for module in MODULES for name in _imports(module)}
    assert imported <= known


def test_every_folder_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = {name if file.name == "__init__.py" else name.rpartition(".")[0] for name, file in MODULES.items()}
    assert sorted(folders) == config["options"]["packages"].split()


def _loaded(script):
    """Run a script in a Python of its own and return which of the heavy libraries it has loaded."""
    script += "\nimport sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {"tensorflow", "torch", "keras", "mpi4py"} & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "script",
    [
        "import easyscale; dir(easyscale)",
        "import easyscale; easyscale.exchange.available(); easyscale.exchange.get('ring')",
        "import easyscale; easyscale.rank(), easyscale.size(), easyscale.local_batch(4), easyscale.scope()",
        "import easyscale; easyscale.shard([1, 2, 3])",
        "import easyscale; easyscale.replication.available()",
        "import easyscale; easyscale.DesyncError",
        "import easyscale.cli.main",
        *(f"import {name}" for name in MODULES if name.startswith("easyscale.cli.") and "__main__" not in name),
        "import easyscale.bench.exchange, easyscale.verify.script",
    ],
)
def test_what_does_not_need_tensorflow_keras_or_mpi_does_not_load_them(script):
    assert _loaded(script) == set()


def test_the_optimizer_loads_keras():
    assert "keras" in _loaded("import easyscale; easyscale.DistributedOptimizer")


# Classes

CLASS_LINES = 300
# Where a class has what it needs, and a base is there for several classes.
COMPOSED = {"communicator", "elastic", "exchange", "serving"}


CLASSES = {
    (module, node.name): node for module in MODULES for node in TREES[module].body if isinstance(node, ast.ClassDef)
}


def _find_class(module, name):
    """Return the class that a module knows by a name, which may be dotted; `None` if it is none of the package's."""
    if (module, name) in CLASSES or module not in MODULES:
        return (module, name) if (module, name) in CLASSES else None
    first, _, rest = name.partition(".")
    for node in ast.walk(TREES[module]):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if first == (alias.asname or alias.name):
                return _find_class(f"{node.module}.{first}", rest) if rest else _find_class(node.module, alias.name)
    return None


def _bases(one):
    names = [ast.unparse(base).partition("[")[0] for base in CLASSES[one].bases]
    return {found for name in names if (found := _find_class(one[0], name)) is not None}


def _with_bases(one):
    return {one}.union(*map(_with_bases, _bases(one)))


def test_no_class_is_long_with_its_bases():
    """Docstrings and comments count. One that is longer is parted: it has objects that do a part of its work."""
    lines = {one: node.end_lineno - node.lineno + 1 for one, node in CLASSES.items()}
    with_bases = {one: sum(map(lines.get, _with_bases(one))) for one in CLASSES}
    assert {one: count for one, count in with_bases.items() if count > CLASS_LINES} == {}


def test_a_base_is_there_for_several_classes():
    """A base with one subclass is a class that is sliced in two."""
    bases = [base for one in CLASSES for base in _bases(one)]
    sliced = {base for base in bases if bases.count(base) == 1 and base[0].split(".")[1] in COMPOSED}
    assert sliced == set()


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert set(json.loads(done.stdout)) <= set(easyscale.__all__)
    with pytest.raises(AttributeError, match="module 'easyscale' has no attribute 'DistributedOptimiser'"):
        easyscale.DistributedOptimiser  # noqa: B018


@pytest.mark.parametrize("module", ["errors", "workers", "scaling", "data", "optimizer"])
def test_what_these_modules_offer_stands_in_the_package(module):
    for name in importlib.import_module(f"easyscale.{module}").__all__:
        assert name in easyscale.__all__
        assert getattr(easyscale, name) is getattr(importlib.import_module(f"easyscale.{module}"), name)


# What is loaded elsewhere: modules of PyTorch by `tests/backend/torch`.
NOT_LOADABLE = ("easyscale.communicator.mpi", "easyscale.backend.torch", "easyscale.__main__")
LOADABLE = [name for name in MODULES if not name.startswith(NOT_LOADABLE)]


@every_module
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
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, f"{module}.{name}"


@pytest.mark.parametrize("module", LOADABLE)
def test_an_override_accepts_what_it_overrides_accepts(module):
    """Whoever has an object of a derived class may call it as one of its base."""
    loaded = importlib.import_module(module)
    own = [one for one in vars(loaded).values() if inspect.isclass(one) and one.__module__ == module]
    for derived, base in [(one, base) for one in own for base in one.__mro__[1:]]:
        if base.__module__ not in MODULES:
            continue
        for name in (set(vars(derived)) & set(vars(base))) - {"__init__", "__new__"}:
            override, original = (inspect.unwrap(getattr(one, name)) for one in (derived, base))
            if inspect.isfunction(override) and inspect.isfunction(original):
                assert _accepts(override, original), f"{derived.__name__}.{name}{inspect.signature(override)}"


def _accepts(override, original):
    """Whether a function can be called as another, by positions and by names, with all arguments or the fewest."""
    known = list(inspect.signature(original).parameters.values())
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in known):
        return True
    required = [one for one in known if one.default is one.empty]
    try:
        for arguments in (known, required):
            by_name = {one.name: None for one in arguments if one.kind is one.KEYWORD_ONLY}
            inspect.signature(override).bind(*[None] * (len(arguments) - len(by_name)), **by_name)
        inspect.signature(override).bind(**{one.name: None for one in known})
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("module", [name for name in MODULES if ">>>" in MODULES[name].read_text()])
def test_examples_in_docstrings_run(module, run_ranks, monkeypatch):
    """Every example but those with a `model`; one that says "on worker 1 of 2" runs there."""
    from easyscale.exchange import registry

    assert module in LOADABLE
    easyscale.exchange.available()
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    for name in ("EASYSCALE_EXCHANGE", "EASYSCALE_REPLICATION"):
        monkeypatch.delenv(name, raising=False)
    loaded = importlib.import_module(module)
    known = {**vars(loaded), "easyscale": easyscale, "np": np, "keras": sys.modules.get("keras")}
    for test in doctest.DocTestFinder(exclude_empty=True).find(loaded, globs=known):
        if any(re.search(r"\bmodel\b", example.source) for example in test.examples):
            continue
        place = re.search(r"# on worker (\d+) of (\d+)", test.docstring or "")
        rank, size = map(int, place.groups()) if place else (0, 1)
        said = []
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        run_ranks(size, lambda comm: comm.rank == rank and runner.run(test, out=said.append))  # noqa: B023
        assert runner.failures == 0, "".join(said)
