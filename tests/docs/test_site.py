"""The site is made without a warning, and needs nothing from other hosts."""

import html.parser
import json
import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from launches import environment, run

ROOT = Path(__file__).parents[2]
MKDOCS = Path(sys.prefix, "docs", "bin", "mkdocs")
LIMIT = 240.0  # seconds
pytestmark = pytest.mark.xdist_group("site")  # which is made once


class Page(html.parser.HTMLParser):
    """What a page loads, where its links lead, and the places in it that links may lead to."""

    def __init__(self, file):
        super().__init__()
        self.loads, self.links, self.places = [], [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(values["href"])
        elif values.get("src"):
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not MKDOCS.exists():
        pytest.skip("there is no mkdocs here: `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [str(MKDOCS), "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(folder)]
    done = run(command, LIMIT, environment(NO_MKDOCS_2_WARNING="1"))  # which would be one of the theme's own future
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {file: Page(file) for file in site.rglob("*.html")}


def test_nothing_is_loaded_from_other_hosts(pages):
    loaded = {address for page in pages.values() for address in page.loads}
    assert loaded
    assert [address for address in loaded if "//" in address] == []


def test_the_search_needs_no_server(site, pages):
    index = (site / "search" / "search_index.js").read_text()
    assert json.loads(index.removeprefix("var __index = "))["docs"]
    without = [file for file, page in pages.items() if not any("iframe-worker.js" in path for path in page.loads)]
    assert [file.name for file in without if file.name != "404.html"] == []


def test_styles_and_pages_name_no_fonts_or_scripts_of_other_hosts(site):
    styles = [file.read_text() for file in site.rglob("*.css")]
    assert styles
    assert [
        found for text in styles for found in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", text)
    ] == []


def test_links_lead_to_pages_of_the_site_and_to_places_in_them(site, pages):
    wrong = []
    for file, page in pages.items():
        for link in [*page.links, *page.loads]:
            path, _, place = unquote(link).partition("#")
            if "://" in path or path.startswith(("mailto:", "data:")):
                continue
            target = (file.parent / path).resolve() if path else file
            is_there = target.exists() and (not place or target not in pages or place in pages[target].places)
            if not is_there and file.name != "404.html":
                wrong.append(f"{file.relative_to(site)}: {link}")
    assert wrong == []


def test_every_page_can_be_searched(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {document["location"].partition("#")[0] for document in index["docs"]}
    assert {"index.html", "reference/script.html", "tutorials/which_exchange.html", "troubleshooting.html"} <= found


def test_a_public_name_stands_on_its_page_as_users_call_it(site):
    text = (site / "reference" / "script.html").read_text()
    assert 'id="easyscale.data.shard.shard"' in text
    assert re.search(r"<h2[^>]*>.*?easyscale\.shard", text, re.DOTALL)
    assert "element <code>i</code> goes to worker <code>i % size</code>" in text


def test_the_command_line_has_each_command_and_option(site):
    text = (site / "reference" / "command_line.html").read_text()
    for command in ("launch", "bench exchange", "bench fit", "bench suite", "doctor", "plan", "verify"):
        assert f">easyscale {command}<" in text
    assert "--stall-timeout" in text


def test_a_tutorial_is_a_page_and_a_notebook(site):
    text = (site / "tutorials" / "which_exchange.html").read_text()
    assert 'src="which_exchange.svg"' in text
    notebook = json.loads((site / "tutorials" / "which_exchange.ipynb").read_text())
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"code", "markdown"}


def test_llms_txt_lists_pages_that_exist(site):
    addresses = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert len(addresses) > 40
    assert [address for address in addresses if not (site / address).exists()] == []
