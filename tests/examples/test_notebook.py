"""The notebook of the examples runs, from its first cell to its last."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def _texts(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.full
def test_notebook_trains_on_two_processes_and_shows_what_they_write(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}}).execute()
    trained, tested, failed = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs][-3:]
    assert "Epoch 10/10" in _texts(trained)
    assert float(_texts(tested).split()[-1]) >= 0.85
    assert _texts(failed).splitlines()[-1] == "no such digit, raised on rank 1 of 2:"
