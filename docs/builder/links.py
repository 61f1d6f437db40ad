"""Links between pages, as they are on a code host: relative, and out of docs/ to any file of the repository.

On the site a link to a file outside of docs/ leads to the page that is made of it (a tutorial, the changelog), or to
one that shows it. So nothing of the site is elsewhere, and it can be read without a network.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["Shown", "rewritten", "targets"]

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_LANGUAGES = {".py": "python", ".sbatch": "bash", ".cfg": "ini", ".toml": "toml", ".yaml": "yaml", "": "text"}


class Shown:
    """The files outside of docs/ that pages link to, each with its place on the site.

    Args:
        pages: Path in the repository -> place of the page that is made of it.
    """

    def __init__(self, pages: dict[str, str]):
        self._pages = pages

    def place(self, path: str) -> str:
        """Return the place on the site of a file or folder of the repository.

        Raises:
            ValueError: If there is no such file.
        """
        if path.startswith("docs/"):
            return path.removeprefix("docs/")
        if path in self._pages:
            return self._pages[path]
        file = ROOT / path
        if not file.exists():
            raise ValueError(f"a link must lead to a file of the repository. Received: '{path}'")
        is_page = file.is_dir() or file.suffix in _LANGUAGES
        return f"source/{path}.md" if is_page else f"source/{path}"

    def is_made(self, path: str) -> bool:
        """Return whether the site has to be given a page, or a copy, of this file."""
        return not path.startswith("docs/") and path not in self._pages

    def page(self, path: str) -> str | None:
        """Return the text of the page that shows a file or folder; `None` for a file that is copied as it is."""
        file = ROOT / path
        if file.is_dir():
            names = sorted(inside.name for inside in file.iterdir() if inside.is_file())
            return f"# {path}/\n\n" + "".join(f"- [{name}]({posixpath.join(path, name)})\n" for name in names)
        if file.suffix not in _LANGUAGES:
            return None
        return f"# {path}\n\n````{_LANGUAGES[file.suffix]}\n{file.read_text().rstrip()}\n````\n"


def targets(markdown: str, origin: str) -> list[str]:
    """Return the paths in the repository that a text links to, which stands in the file `origin`."""
    found: list[str] = []
    _each_link(markdown, lambda target: found.append(_path(target, origin)) or target)
    return found


def rewritten(markdown: str, origin: str, place: str, shown: Shown) -> str:
    """Return a text of the file `origin` with its links as they must be on the page at `place`."""

    def link(target: str) -> str:
        _, hash_mark, anchor = target.partition("#")
        to = shown.place(_path(target, origin))
        return posixpath.relpath(to, posixpath.dirname(place)) + hash_mark + anchor

    return _each_link(markdown, link)


def _path(target: str, origin: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target.partition("#")[0]))


def _each_link(markdown: str, change: Callable[[str], str]) -> str:
    """Replace the target of each relative link outside of blocks of code."""

    def replace(found: re.Match[str]) -> str:
        target = found[2]
        is_relative = not target.startswith(("#", "/", "mailto:")) and "://" not in target
        return found[1] + (change(target) if is_relative else target) + found[3]

    parts, end = [], 0
    for block in _FENCED.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])
