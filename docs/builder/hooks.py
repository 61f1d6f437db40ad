"""What MkDocs asks while it builds the site: pages that are made of other files, links, names, and llms.txt."""

import posixpath
import re
from pathlib import Path
from typing import Any

import command_line
import links
import names
import texts
import tutorials
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_DIRECTIVE = re.compile(r"^::: (easyscale[\w.]*)$", re.MULTILINE)
_NAMED_BY_FILE = re.compile(r"\[(?:docs/)?([\w.]+\.md)\]\(([\w./]+\.md)((?:#[\w-]+)?)\)")
# What users write subclasses of, or have objects of whose methods they call. Of others the arguments are shown.
_WITH_METHODS = {
    "easyscale.communicator.Communicator",
    "easyscale.communicator.Request",
    "easyscale.compression.Compression",
    "easyscale.compression.Packing",
    "easyscale.exchange.Exchange",
    "easyscale.parallel.Pipeline",
}
_SHOWN = links.Shown(
    {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md", **tutorials.PLACES}
)
_origins: dict[str, str] = {}  # place of a page that is not in docs/ -> the file that it is made of
_navigation: list[Page] = []


def on_startup(command: str, dirty: bool) -> None:
    names.copy_package(ROOT / "build" / "package")


def on_files(files: Files, config: MkDocsConfig) -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    made = {
        "changelog.md": ("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text()),
        "contributing.md": ("CONTRIBUTING.md", contributing),
        "glossary.md": ("CONTRIBUTING.md", texts.glossary(contributing)),
        "reference/command_line.md": ("docs/reference/command_line.md", command_line.page()),
    }
    made |= {place: (path, tutorials.page(path)) for path, place in tutorials.PLACES.items()}
    for path, place in tutorials.PLACES.items():
        stem = place.removesuffix(".md")
        files.append(File.generated(config, f"{stem}.ipynb", content=tutorials.notebook(path)))
        files.append(File.generated(config, f"{stem}.py", abs_src_path=str(ROOT / path)))
    texts_of_pages = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    linked = [path for origin, text in [*texts_of_pages, *made.values()] for path in links.targets(text, origin)]
    for path in linked:  # which grows: a page that shows a folder links to what is in it
        place = _SHOWN.place(path)
        if not _SHOWN.is_made(path) or place in made or files.get_file_from_path(place) is not None:
            continue
        shown = _SHOWN.page(path)
        if shown is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
        else:
            made[place] = (".", shown)
            linked += links.targets(shown, ".")
    for place, (origin, text) in made.items():
        _origins[place] = origin
        files.append(File.generated(config, place, content=text))


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    _navigation[:] = nav.pages


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    markdown = links.rewritten(markdown, _origins.get(place, f"docs/{place}"), place, _SHOWN)
    markdown = _NAMED_BY_FILE.sub(lambda found: _named_by_title(found, place, files), markdown)
    return _DIRECTIVE.sub(lambda found: _documented(found[1]), markdown)


def _named_by_title(link: re.Match[str], place: str, files: Files) -> str:
    """A link whose text is the name of a file, as it is good on a code host, with the title of its page instead."""
    to = posixpath.normpath(posixpath.join(posixpath.dirname(place), link[2]))
    file = files.get_file_from_path(to)
    if file is None:
        return link[0]
    return f"[{texts.title(file.content_string)}]({link[2]}{link[3]})"


def _documented(name: str) -> str:
    """What mkdocstrings shows of a public name: what stands where it is defined, under the name that users know."""
    label = name.rpartition(".")[2]
    options = {"heading": name, "toc_label": label}
    if name not in _WITH_METHODS:
        options["members"] = "false"
    lines = [f"::: {names.definition_of(name)}", "    options:"]
    return "\n".join([*lines, *(f"      {option}: {value}" for option, value in options.items())])


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let the theme's links to the site's folder lead to its first page: a page that is a file has no server for it."""
    return re.sub(r'(<a href="\.{1,2}(?:/\.\.)*)(?=" title)', r"\1/index.html", output)


def on_post_build(config: MkDocsConfig) -> None:
    pages = [(_group(page), page.url, page.markdown or "") for page in _navigation]
    text = texts.llms(config.site_name, config.site_description or "", pages)
    Path(config.site_dir, "llms.txt").write_text(text)


def _group(page: Any) -> str:
    while page.parent is not None:
        page = page.parent
    return page.title or "Home"
