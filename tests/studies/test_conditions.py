import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from sage_snn.studies.comparison import compare
from sage_snn.studies.conditions import condition_notes
from sage_snn.studies.figures import baseline_of
from sage_snn.studies.results import ResultError, load_runs, recipe_differences, require_comparable, table

_spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(synthetic)

USUAL = {"precision": "32", "device": "cpu", "ranks": 1, "threads": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four runs: fixed and sage, two seeds each, sage one point better."""
    root = tmp_path_factory.mktemp("runs")
    made = [
        synthetic.write_run(
            root / f"{kind}{seed}", {"policy.kind": kind, "seed": seed}, top1=50.0 + seed / 10 + (kind == "sage")
        )
        for kind in ("fixed", "sage")
        for seed in (1, 2)
    ]
    return load_runs(made)


def under(runs, *conditions):
    """The runs as if they had been trained so; a mapping each."""
    return [replace(run, applied=USUAL | changes) for run, changes in zip(runs, conditions, strict=True)]


OTHER = [("precision", "16"), ("device", "cuda"), ("ranks", 2)]


@pytest.mark.parametrize(("key", "value"), OTHER)
def test_runs_that_differ_in_a_decisive_condition_are_refused_unless_asked_for(trained, key, value):
    runs = under(trained, {}, {}, {key: value}, {key: value})
    assert recipe_differences(runs) == {f"applied.{key}": [USUAL[key], value]}
    with pytest.raises(ResultError, match=rf"applied.{key}: {USUAL[key]!r} or {value!r}\n.*--different-recipes"):
        require_comparable(runs)
    require_comparable(runs, [f"applied.{key}"])


@pytest.mark.parametrize(("key", "value"), OTHER)
def test_runs_are_paired_only_within_equal_conditions(trained, key, value):
    rows = table(under(trained, {}, {key: value}, {}, {key: value}))
    assert list(rows["label"]) == [f"{kind} {key}={v}" for kind in ("fixed", "sage") for v in (USUAL[key], value)]
    assert baseline_of(rows) == "fixed"
    compared = compare(rows).set_index("label")
    assert [compared.loc[f"sage {key}={v}", "pairs"] for v in (USUAL[key], value)] == [1, 1]
    apart = compare(table(under(trained, {}, {}, {key: value}, {key: value}))).set_index("label")
    assert apart.loc[f"sage {key}={value}", "words"] == "no baseline run in the same setting"


def test_conditions_join_the_labels_that_a_study_gives(trained):
    runs = under(trained, {}, {"device": "cuda"}, {}, {"device": "cuda"})
    rows = table(runs, {"fixed1": "plain lr=1", "fixed2": "plain lr=1", "sage1": "ours", "sage2": "ours"})
    assert list(rows["label"]) == [f"{name} device={d}" for name in ("plain lr=1", "ours") for d in ("cpu", "cuda")]
    compared = compare(rows, baseline="ours").set_index("label")
    assert list(compared["is_baseline"]) == [False, False, True, True]


def test_differing_threads_are_said_but_neither_refused_nor_kept_apart(trained):
    runs = under(trained, {}, {}, {"threads": 2}, {"threads": 2})
    runs = [replace(run, recipe=run.recipe.updated({"threads": run.applied["threads"]})) for run in runs]
    require_comparable(runs)
    rows = table(runs)
    assert list(rows["label"]) == ["fixed", "fixed", "sage", "sage"]
    assert compare(rows).set_index("label").loc["sage", "pairs"] == 2
    timed = compare(rows, "images_per_second").set_index("label")
    assert timed.loc["sage", "words"] == "no baseline run in the same setting"
    (note,) = condition_notes(runs)
    assert note.startswith("The runs differ in threads (1: 2 runs, 2: 2 runs)")


def test_threads_tell_runs_apart_where_nothing_else_does(trained):
    runs = [replace(run, recipe=run.recipe.updated({"seed": 1, "threads": n})) for n, run in enumerate(trained[2:], 1)]
    assert list(table(runs)["label"]) == ["sage threads=1", "sage threads=2"]
    require_comparable(runs)


def test_conditions_that_an_older_version_did_not_write_are_said_and_not_refused(trained):
    runs = under(trained, {"precision": None}, {"precision": None}, {}, {})
    require_comparable(runs)
    assert compare(table(runs)).set_index("label").loc["sage", "pairs"] == 2
    told = "Not known of 2 of 4 runs, which an older version wrote: precision; they are paired as if it were the same."
    assert condition_notes(runs) == [told]
    assert condition_notes(under(trained, {}, {}, {}, {})) == []


def test_unknown_conditions_stay_among_themselves_where_known_ones_differ(trained):
    runs = under(trained, {"device": None}, {"device": "cuda"}, {"device": None}, {})
    assert list(table(runs)["label"]) == [
        "fixed device=unknown",
        "fixed device=cuda",
        "sage device=unknown",
        "sage device=cpu",
    ]
    differ, unknown = condition_notes(runs)
    assert differ.startswith("The runs differ in device (unknown: 2 runs, cuda: 1 run, cpu: 1 run)")
    assert unknown.endswith("device; they are paired among themselves.")


def test_a_precision_that_the_recipe_tells_is_told_once(trained):
    runs = under(trained, {}, {}, {"precision": "16"}, {"precision": "16"})
    runs = [replace(run, recipe=run.recipe.updated({"precision": run.applied["precision"]})) for run in runs]
    rows = table(runs)
    assert list(rows["label"])[1:3] == ["fixed precision=32", "sage precision=16"]
    assert "applied.precision" not in rows


def test_data_sets_may_have_conditions_of_their_own(trained):
    runs = under(trained, {}, {"device": "cuda"}, {}, {"device": "cuda"})
    runs = [
        replace(run, recipe=run.recipe.updated({"data": "digits" if n % 2 else "cifar10"}))
        for n, run in enumerate(runs)
    ]
    require_comparable(runs)
    assert condition_notes(runs) == []
