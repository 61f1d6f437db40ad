"""Private names of Keras and TensorFlow stand in few files, each behind a function."""

import ast
import re

import pytest
from structure.package import MODULES, TREES

from easyscale.keras_internals.table import TABLE

OF_OTHERS = {
    "easyscale.backend.jax.whole_batch",
    "easyscale.backend.tensorflow.internals",
    "easyscale.keras_internals.deferral",
    "easyscale.keras_internals.epochs",
    "easyscale.keras_internals.masks",
    "easyscale.keras_internals.models",
    "easyscale.keras_internals.optimization",
}
# Of tensors and datasets, which are objects of many classes. `models.require_datasets` looks at some, and what is not
# there of the others is `None`.
OF_OBJECTS = {"_batch_size", "_dataset", "_inputs", "_keras_mask", "_seed", "_seed2", "_tensors", "_trace"}
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


def test_each_private_name_has_a_row_in_the_table():
    named = {name for row in TABLE for name in row.names}
    named |= {part for row in TABLE for part in row.owner.replace(":", ".").split(".")}
    used = {name for module in OF_OTHERS for name in _foreign(TREES[module])} - OF_OBJECTS
    assert {name for name in used if name not in named and "." not in name} == set()


def test_each_row_of_the_table_is_used():
    text = "\n".join(file.read_text() for name, file in MODULES.items() if not name.endswith("internals.table"))
    assert [name for row in TABLE for name in row.names if not re.search(rf"\b{name}\b", text)] == []
    assert all(row.use and row.seen[0] <= row.seen[1] for row in TABLE)


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
