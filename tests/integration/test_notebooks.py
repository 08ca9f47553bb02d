"""Notebooks are run from top to bottom; what they show is looked at."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
nbformat.write(notebook, "done.ipynb")
"""


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The outputs of a notebook's cells, run in an empty folder."""
    known = {}

    def outputs(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            command = [sys.executable, "-c", RUN, FOLDER / f"{name}.ipynb"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800)
            assert done.returncode == 0, done.stderr[-3000:]
            known[name] = [cell["outputs"] for cell in cells(folder / "done.ipynb") if cell["cell_type"] == "code"]
        return known[name]

    return outputs


def html(outputs):
    return ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]


def has_picture(outputs):
    return any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
def test_sage_in_a_loop_draws_and_shows_itself(executed):
    outputs = executed("sage_in_your_loop")
    [report] = html(outputs[1])
    assert "surrogate gain" in report
    assert has_picture(outputs[2])
    [policy] = html(outputs[3])
    assert "<th>zscores</th>" in policy
    assert policy.count("<tr>") == 1 + 2
    assert re.search(r"training accuracy \d\d\.\d%", "".join(outputs[4][0]["text"]))


@pytest.mark.slow
def test_policies_are_compared_with_bars_and_tables(executed):
    outputs = executed("compare_policies")
    results = html(outputs[1])[-1]
    assert all(f"<th>{name}</th>" in results for name in ("fixed", "learnable", "sage", "noise"))
    assert has_picture(outputs[2])
    assert any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in outputs[3])
    assert "per layer and image" in html(outputs[3])[-1]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(notebook):
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_both_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["compare_policies", "sage_in_your_loop"]
