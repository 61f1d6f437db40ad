"""Something to do once a module has been imported."""

import importlib
import importlib.util
import sys

import pytest

from easyscale.when_imported import before_import, when_imported


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules that nobody has imported: `low`, and `high`, which imports it and has more to do then."""
    (tmp_path / "low.py").write_text("value = 1\n")
    (tmp_path / "high.py").write_text("import low\nimport sys\nis_done = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in ("low", "high"):
        sys.modules.pop(name, None)


def test_it_is_done_once_and_when_the_module_is_whole(modules):
    seen = []
    when_imported("low", lambda: seen.append(sys.modules["low"].value))
    assert seen == []
    importlib.import_module("low")
    importlib.reload(sys.modules["low"])
    assert seen == [1]


def test_a_look_whether_the_module_is_there_is_no_import(modules):
    """TensorFlow, when it is imported, looks whether Keras is there."""
    seen = []
    before_import("low", lambda: seen.append("before"))
    when_imported("low", lambda: seen.append("after"))
    for _ in range(2):
        assert importlib.util.find_spec("low") is not None
    assert seen == []
    importlib.import_module("low")
    assert seen == ["before", "after"]


def test_it_is_done_at_once_if_the_module_is_there(modules):
    import low  # noqa: F401

    seen, finders = [], list(sys.meta_path)
    when_imported("low", lambda: seen.append(1))
    assert seen == [1]
    assert sys.meta_path == finders


@pytest.mark.parametrize(("first", "then"), [("high", "low"), ("low", "high")])
def test_it_waits_for_a_module_through_which_it_is_imported(modules, first, then):
    seen = []
    when_imported("low", lambda: seen.append([hasattr(sys.modules.get("high"), "is_done")]), through=["high"])
    importlib.import_module(first)
    assert seen == [[first == "high"]]
    importlib.import_module(then)
    assert seen == [[first == "high"]]


def test_it_is_not_done_for_a_module_that_must_not_be_imported(modules, monkeypatch):
    monkeypatch.setitem(sys.modules, "low", None)
    when_imported("low", lambda: pytest.fail("called"))
    with pytest.raises(ModuleNotFoundError, match="low"):
        importlib.import_module("low")


def test_a_module_that_is_not_there_fails_as_ever(modules):
    when_imported("nowhere_to_be_found", lambda: pytest.fail("called"))
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        importlib.import_module("nowhere_to_be_found")


def test_what_is_to_come_before_an_import_does_once_and_may_stop_it(modules):
    seen = []
    before_import("low", lambda: seen.append("low" in sys.modules and hasattr(sys.modules["low"], "value")))
    importlib.import_module("low")
    importlib.reload(sys.modules["low"])
    assert seen == [False]

    def refuse():
        raise RuntimeError("not this one")

    before_import("high", refuse)
    with pytest.raises(RuntimeError, match="not this one"):
        importlib.import_module("high")
    assert "high" not in sys.modules
    before_import("low", refuse)  # too late
    importlib.import_module("high")  # once


def test_one_may_watch_before_and_after(modules):
    seen = []
    before_import("low", lambda: seen.append("before"))
    when_imported("low", lambda: seen.append("after"))
    before_import("low", lambda: seen.append("before, too"))
    importlib.import_module("low")
    assert sorted(seen[:2]) == ["before", "before, too"]
    assert seen[2:] == ["after"]
