"""Tutorials: scripts in `examples/tutorials/`, in cells as jupytext has them, as pages and as notebooks.

A page has the cells of its script one below the other. Behind a cell that saves a picture stands that picture, from
`docs/tutorials/`. What scripts print stands in them as text, which `tests/examples/test_tutorials.py` compares.
"""

import re
from pathlib import Path, PurePath

import jupytext
import nbformat

__all__ = ["PLACES", "notebook", "page"]

ROOT = Path(__file__).parents[2]
FOLDER = "examples/tutorials"
# Path of a script in the repository -> place of its page.
PLACES = {f"{FOLDER}/{file.name}": f"tutorials/{file.stem}.md" for file in sorted((ROOT / FOLDER).glob("*.py"))}
_SAVED = re.compile(r"""savefig\(["']([\w.]+)["']""")


def page(path: str) -> str:
    """Return the page of a tutorial, in Markdown. Its links are as in the script."""
    stem = Path(path).stem
    title, _, rest = _cell_texts(path).partition("\n")
    forms = {"py": "a script", "ipynb": "a notebook"}
    links = [f'<a href="{stem}.{ending}" download>{form}</a>' for ending, form in forms.items()]
    other_forms = f"This page is also {' and '.join(links)}."
    return f"{title}\n\n{other_forms}\n{rest}"


def notebook(path: str) -> str:
    """Return the notebook of a tutorial."""
    return nbformat.writes(_read(path))


def _read(path: str) -> nbformat.NotebookNode:
    made = jupytext.reads((ROOT / path).read_text(), fmt="py:percent")
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"  # the same each time
    return made


def _cell_texts(path: str) -> str:
    texts = []
    for cell in _read(path).cells:
        if cell.cell_type == "markdown":
            texts.append(cell.source)
            continue
        texts.append(f"```python\n{cell.source}\n```")
        for name in _SAVED.findall(cell.source):
            texts.append(f"![{PurePath(name).stem.replace('_', ' ')}, drawn](../../docs/tutorials/{name})")
    return "\n\n".join(texts) + "\n"
