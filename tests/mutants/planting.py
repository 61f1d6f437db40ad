"""Plant faults in Python source, one at a time."""

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Fault", "faults_in"]

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_ONLY_ASSERT = ("strict", "stacklevel")  # arguments that change nothing where everything is right
_BOOLS = {ast.And: ast.Or, ast.Or: ast.And}


class Fault(NamedTuple):
    """A fault that can be planted.

    Attributes:
        line: Int. Where, from 1.
        before, after: Strings. What stands there, and what would.
        source: String. The whole file with the fault.
    """

    line: int
    before: str
    after: str
    source: str


def faults_in(source: str) -> Iterator[Fault]:
    """Yield each fault that can be planted in the functions of a file.

    A comparison, an operator, `and` or `or`, `not`, a number, a truth value: each becomes its nearest neighbour. A call
    that stands alone is left out, and a value that is returned is not. Texts, annotations and defaults of arguments,
    `raise`, and what is only for people, stay.
    """
    tree = ast.parse(source)
    for path in _places(tree):
        changed = copy.deepcopy(tree)
        parent, field, index = _follow(changed, path)
        node = getattr(parent, field) if index is None else getattr(parent, field)[index]
        for new in _neighbours(node):
            before = ast.unparse(node)
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index] = new
            ast.fix_missing_locations(changed)
            yield Fault(node.lineno, before, ast.unparse(new), ast.unparse(changed) + "\n")


def _follow(tree: ast.AST, path: list[tuple[str, int | None]]) -> tuple[ast.AST, str, int | None]:
    node = tree
    for field, index in path[:-1]:
        node = getattr(node, field) if index is None else getattr(node, field)[index]
    return node, *path[-1]


def _places(tree: ast.AST) -> Iterator[list[tuple[str, int | None]]]:
    """Yield the way from the root to each node inside of a function that has a neighbour."""

    def walk(node: ast.AST, path: list, inside: bool) -> Iterator[list]:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "args", "type_params") and isinstance(
                node, (ast.FunctionDef, ast.AnnAssign, ast.arg)
            ):
                continue
            children = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, child in children:
                if not isinstance(child, ast.AST) or isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr)):
                    continue
                if isinstance(child, ast.keyword) and child.arg in _ONLY_ASSERT:
                    continue
                way = [*path, (field, index)]
                if inside and any(True for _ in _neighbours(child)):
                    yield way
                yield from walk(child, way, inside or isinstance(child, ast.FunctionDef))

    yield from walk(tree, [], False)


def _neighbours(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.copy_location(ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators), node)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and not _is_text(node):
        yield ast.copy_location(ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right), node)
    elif isinstance(node, ast.BoolOp):
        yield ast.copy_location(ast.BoolOp(_BOOLS[type(node.op)](), node.values), node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.copy_location(node.operand, node) if hasattr(node.operand, "lineno") else node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.copy_location(ast.Constant(not node.value), node)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.copy_location(ast.Constant(node.value + 1), node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.copy_location(ast.Pass(), node)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield ast.copy_location(ast.Return(ast.Constant(None)), node)


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(one, (ast.JoinedStr, ast.List, ast.Tuple)) or _is_str(one) for one in (node.left, node.right))


def _is_str(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
