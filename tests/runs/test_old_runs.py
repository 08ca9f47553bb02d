"""Folders of an earlier version (tests/old_runs) are opened, evaluated, looked into, reported and gone on with."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from sage_snn.runs import RunFolder, assess, check_run, inspect_run, open_run
from sage_snn.studies.report import write_report
from sage_snn.studies.results import load_runs
from sage_snn.training import train

OLD = Path(__file__).parents[1] / "old_runs"
FINISHED = ["finished-fixed", "finished-learnable", "finished-sage"]


@pytest.fixture
def old(tmp_path):
    """Copies an old folder to where it may be written."""
    return lambda name: shutil.copytree(OLD / name, tmp_path / name)


@pytest.mark.parametrize("name", [*FINISHED, "interrupted-sage"])
def test_it_opens_and_is_evaluated_looked_into_and_checked(old, name):
    run = open_run(old(name))
    assert run.recipe.policy.kind == name.partition("-")[2]
    assessment = assess(run)
    if name in FINISHED:
        assert assessment.top1 == pytest.approx(run.folder.metrics()[-1]["test_top1"])
    assert (assessment.unfinished is None) == (name in FINISHED)
    assert [block.name for block in inspect_run(run, images=1).blocks] == ["blocks.0.attention", "blocks.1.attention"]
    assert check_run(run).parts


def test_finished_ones_are_left_alone_by_resume(old, capfd):
    for name in FINISHED:
        folder = old(name)
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        assert train(folder / "recipe.yaml", folder, resume=True)["finished"]
        assert "nothing to do" in capfd.readouterr().err
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_interrupted_one_goes_on_to_its_end(old):
    folder = old("interrupted-sage")
    summary = train(folder / "recipe.yaml", folder, resume=True, quiet=True)
    assert (summary["finished"], summary["epochs"]) == (True, 2)
    assert [line["epoch"] for line in RunFolder(folder).metrics()] == [0, 1]
    for kind in ("signals", "observations"):
        assert sorted(pd.read_parquet(folder / kind / "epoch-0001.parquet")["step"].unique()) == [4, 5, 6, 7]
    whole = pd.read_parquet(OLD / "finished-sage" / "signals" / "epoch-0001.parquet")
    assert list(pd.read_parquet(folder / "signals" / "epoch-0001.parquet").columns) == list(whole.columns)


def test_they_are_reported_on_one_page(old, tmp_path):
    page = write_report(load_runs([old(name) for name in FINISHED]), tmp_path / "page", title="old runs")
    text = Path(page).read_text(encoding="utf-8")
    assert all(name in text for name in ("fixed", "learnable", "sage"))
