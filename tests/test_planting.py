"""Faults that are planted in a file."""

from mutants.planting import faults_in

SOURCE = '''
"""A module."""

LIMIT = 3


def take(items: list, count: int = 2, *, strict: bool = True) -> int:
    """Return what is left."""
    if count < LIMIT and items:
        items.pop()
        print(f"{count + 1} left", flush=True)
        list(zip(items, items, strict=True))
    if count < 0:
        raise ValueError("no: " + str(count + 1))
    return count - 1
'''


def test_each_place_has_a_neighbour_and_texts_stay():
    found = {(fault.before, fault.after) for fault in faults_in(SOURCE)}
    assert ("count < LIMIT", "count <= LIMIT") in found
    assert ("count < LIMIT and items", "count < LIMIT or items") in found
    assert ("items.pop()", "pass") in found
    assert ("return count - 1", "return None") in found
    assert ("count - 1", "count + 1") in found
    assert ("1", "2") in found
    changed = {before for before, _ in found}
    assert not changed & {"2", "3", "count + 1", "zip(items, items, strict=True)"}  # defaults, constants, texts
    assert ("True", "False") in found  # of `flush`


def test_a_file_with_a_fault_is_one_that_runs_and_differs():
    sources = [fault.source for fault in faults_in(SOURCE)]
    assert len(set(sources)) == len(sources) >= 9
    for source in sources:
        compile(source, "fault.py", "exec")
