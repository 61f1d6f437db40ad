"""What the site's pages say is what there is: public names, messages, pictures, links."""

import ast
import re
import sys
from pathlib import Path

import pytest
from structure.package import MODULES, TREES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "builder"))

import links  # noqa: E402
import names  # noqa: E402
import ring  # noqa: E402
import texts  # noqa: E402

PAGES = sorted(path for path in DOCS.rglob("*.md"))
NAMES = [name for name in names.public_names() if names.definition_of(name) not in MODULES]


# Public names


def _documented():
    return [
        name
        for page in DOCS.joinpath("reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]


def test_every_public_name_has_a_page_and_one_only():
    assert sorted(_documented()) == sorted(NAMES), "docs/reference has a line `::: name` for each"


def _docstring(name):
    """The docstring of a function or class, or the one below a variable."""
    module, _, last = names.definition_of(name).rpartition(".")
    body = TREES[module].body
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == last:
            return ast.get_docstring(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and last in ast.unparse(node).partition("=")[0]:
            is_text = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
            return behind.value.value if is_text else None
    return None


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_it_is(name):
    assert _docstring(name)


def _arguments(name):
    """The arguments of a function, or of a class; and whether it raises something itself."""
    module, _, last = names.definition_of(name).rpartition(".")
    for node in TREES[module].body:
        is_class = isinstance(node, ast.ClassDef) and node.name == last
        wanted = "__init__" if is_class else last
        for function in node.body if is_class else [node]:
            if isinstance(function, ast.FunctionDef) and function.name == wanted:
                given = function.args
                found = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(function))
                return [argument.arg for argument in found if argument and argument.arg != "self"], raises
    return [], False


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_its_arguments_are_and_that_it_raises_something(name):
    said, (arguments, raises) = _docstring(name) or "", _arguments(name)
    missing = [argument for argument in arguments if not re.search(rf"^ +\**{argument}: ", said, re.MULTILINE)]
    assert not missing
    assert "Raises:\n" in said or not raises


def test_a_public_name_has_an_example():
    assert [name for name in NAMES if ">>>" not in (_docstring(name) or "")] == []


# Messages


def _said_in_code():
    """Every text of the code, with `...` for what differs."""
    found = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def _messages():
    """The messages that the page of troubleshooting names, in the first column of its tables."""
    text = (DOCS / "troubleshooting.md").read_text()
    cells = re.findall(r"^\| (`.+?`) \| ", text, re.MULTILINE)
    return [re.fullmatch(r"(`+) ?(.+?) ?\1", cell)[2] for cell in cells]


@pytest.fixture(scope="module")
def said_in_code():
    return _said_in_code()


@pytest.mark.parametrize("message", _messages())
def test_a_message_in_the_troubleshooting_is_one_of_the_code(message, said_in_code):
    pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
    assert any(pattern.search(text) for text in said_in_code)


# Pages, pictures, links


def test_every_page_has_a_place_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {str(page.relative_to(DOCS)) for page in PAGES} <= set(listed)


def test_a_page_begins_with_its_title():
    assert [page.name for page in PAGES if not page.read_text().startswith("# ")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_of_a_page_lead_somewhere(page):
    for target in links.targets(page.read_text(), str(page.relative_to(ROOT))):
        assert (ROOT / target).exists(), target


def test_the_ring_is_drawn_by_its_script():
    assert (DOCS / "ring.svg").read_text() == ring.draw()


def test_links_out_of_docs_lead_to_pages_of_the_site():
    shown = links.Shown({"CHANGELOG.md": "changelog.md"})
    text = "[a](../CHANGELOG.md#x) [b](plan.md) [c](../examples/digits.py) ![](../benchmarks/results/plan.png)\n"
    text += "```text\n[d](nowhere.md)\n```\n[e](https://keras.io) [f](#here)"
    made = "[a](../changelog.md#x) [b](../plan.md) [c](../source/examples/digits.py.md) "
    made += (
        "![](../source/benchmarks/results/plan.png)\n```text\n[d](nowhere.md)\n```\n[e](https://keras.io) [f](#here)"
    )
    assert links.rewritten(text, "docs/page.md", "folder/page.md", shown) == made
    with pytest.raises(ValueError, match=r"must lead to a file of the repository. Received: 'docs2/x.py'"):
        links.rewritten("[x](docs2/x.py)", "README.md", "index.md", shown)


def test_the_glossary_has_the_words_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    page = texts.glossary(text)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert "| owner | the rank to which a range of a vector comes, and which updates it |" in rows
    assert rows[1:] == sorted(rows[1:], key=lambda row: row.split(" | ")[0].lower())
    assert set(rows) <= set(text.splitlines())


def test_llms_txt_names_each_page_with_its_first_sentence():
    pages = [("Start", "a.html", "# A\n\n```python\nx\n```\n\nOne [link](b.md). Two."), ("How to", "b.html", "# B\n")]
    assert texts.llms("T", "S.", pages) == (
        "# T\n\n> S.\n\n## Start\n\n- [A](a.html): One link.\n\n## How to\n\n- [B](b.html)\n"
    )
