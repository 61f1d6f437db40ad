"""Texts of the site that are made of others: the glossary, and llms.txt."""

import re
from collections.abc import Sequence

__all__ = ["glossary", "llms", "title"]

_ROW = re.compile(r"^\| (.+?) \| (.+?) \|$", re.MULTILINE)


def glossary(contributing: str) -> str:
    """Return the page of words, by the alphabet, from the table of CONTRIBUTING.md."""
    table = contributing.partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = [row for row in _ROW.findall(table) if row[0] != "word" and not row[0].startswith("---")]
    lines = [f"| {word} | {meaning} |" for word, meaning in sorted(rows, key=lambda row: row[0].lower())]
    head = "# Glossary\n\nThe field's words, each for one thing.\n\n| word | meaning |\n|---|---|\n"
    return head + "\n".join(lines) + "\n"


def title(text: str) -> str:
    """Return the title of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else "?"


def llms(name: str, summary: str, pages: Sequence[tuple[str, str, str]]) -> str:
    """Return the text of `llms.txt`: what there is to read, for programs that read; see llmstxt.org.

    Args:
        name: String. Of the site.
        summary: String. One sentence.
        pages: The group, the address and the text of each page, in Markdown.
    """
    lines, group = [f"# {name}", "", f"> {summary}"], ""
    for own, address, text in pages:
        if own != group:
            group = own
            lines += ["", f"## {group}", ""]
        lines.append(f"- [{title(text)}]({address}){_first_sentence(text)}")
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, behind a colon; nothing if the page begins otherwise."""
    for block in re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL).split("\n\n"):
        if re.match(r"[A-Z`\[]", block.strip()) and "<a " not in block:
            plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(block.split()))
            first = re.split(r"(?<=[.:])\s", plain)[0]
            return f": {first.rstrip(':')}"
    return ""
