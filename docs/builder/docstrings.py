"""Docstrings for mkdocstrings: examples behind `Example:` are blocks of code, as in the rest of the site."""

import re
from typing import Any

import griffe

__all__ = ["Examples"]

_EXAMPLE = re.compile(r"(^>>> .*\n(?:.+\n)*)", re.MULTILINE)


class Examples(griffe.Extension):
    """Puts a fence around the lines of each example."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\1```\n", obj.docstring.value + "\n")
