"""A docstring opens with what a thing is, or with what it does."""

import ast
import re

import pytest
from structure.package import MODULES, TREES

QUESTION = re.compile(r"(What|Whether|Where|Who|Whose|Which|How|When|That|Those)\b")


@pytest.mark.parametrize("module", MODULES)
def test_no_docstring_opens_with_a_relative_clause(module):
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(TREES[module]) if isinstance(node, documented)]
    assert [text.partition("\n")[0] for text in docstrings if QUESTION.match(text)] == []
