"""No class is sliced in two, and each can stand for its base."""

import ast
import importlib
import inspect

import pytest
from structure.package import LOADABLE, MODULES, TREES

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


def _bases(key):
    names = [ast.unparse(base).partition("[")[0] for base in CLASSES[key].bases]
    return {found for name in names if (found := _find_class(key[0], name)) is not None}


def test_a_base_is_there_for_several_classes():
    """A base with one subclass is a class that is sliced in two."""
    bases = [base for key in CLASSES for base in _bases(key)]
    sliced = {base for base in bases if bases.count(base) == 1 and base[0].split(".")[1] in COMPOSED}
    assert sliced == set()


@pytest.mark.parametrize("module", LOADABLE)
def test_an_override_accepts_what_it_overrides_accepts(module):
    """Whoever has an object of a derived class may call it as one of its base."""
    loaded = importlib.import_module(module)
    own = [value for value in vars(loaded).values() if inspect.isclass(value) and value.__module__ == module]
    for derived, base in [(cls, base) for cls in own for base in cls.__mro__[1:]]:
        if base.__module__ not in MODULES:
            continue
        for name in (set(vars(derived)) & set(vars(base))) - {"__init__", "__new__"}:
            override, original = (inspect.unwrap(getattr(cls, name)) for cls in (derived, base))
            if inspect.isfunction(override) and inspect.isfunction(original):
                assert _accepts(override, original), f"{derived.__name__}.{name}{inspect.signature(override)}"


def _accepts(override, original):
    """Whether a function can be called as another, by positions and by names, with all arguments or the fewest."""
    known = list(inspect.signature(original).parameters.values())
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in known):
        return True
    required = [parameter for parameter in known if parameter.default is parameter.empty]
    try:
        for arguments in (known, required):
            by_name = {parameter.name: None for parameter in arguments if parameter.kind is parameter.KEYWORD_ONLY}
            inspect.signature(override).bind(*[None] * (len(arguments) - len(by_name)), **by_name)
        inspect.signature(override).bind(**{parameter.name: None for parameter in known})
    except TypeError:
        return False
    return True
