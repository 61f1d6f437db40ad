"""Forms that several parts of a drawn script have."""

import textwrap

from fuzz.case import Case

__all__ = ["in_scope", "structure"]


def in_scope(case: Case, source: str, builds: bool = False) -> str:
    """Return the source, in the scope of in-graph replication, or of a pipeline that builds it, as the case has."""
    scope = "easyscale.scope()" if case["replication"] == "in_graph" else "parallel.scope()"
    if case["replication"] != "in_graph" and not (builds and case["scope"] == "yes"):
        return source
    return f"with {scope} if easyscale else contextlib.nullcontext():\n" + textwrap.indent(source, "    ")


def structure(case: Case, first: str, second: str) -> str:
    """Return the source of what a model of one output, or of two, takes."""
    forms = {"one": "{0}", "dict": '{{"one": {0}, "two": {1}}}', "list": "[{0}, {1}]"}
    return forms[case["outputs"]].format(first, second)
