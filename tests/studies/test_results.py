import json
import math
import time

import pandas as pd
import pyarrow.parquet as pq
import pytest

from sage_snn.recipes import load_recipe
from sage_snn.runs import RunFolder
from sage_snn.studies.results import (
    ResultError,
    field_columns,
    load_runs,
    recipe_differences,
    require_comparable,
    table,
)


def write_run(folder, settings=None, top1=50.0, epochs=2):
    """What a finished run leaves, without training one."""
    run = RunFolder(folder)
    run.signals.mkdir(parents=True)
    recipe = load_recipe("digits", {"epochs": epochs, "model.depth": 2, **(settings or {})})
    run.write_recipe(recipe, {"versions": {"sage-snn": "0.0.9"}, "device": "cpu"})
    for epoch in range(epochs):
        run.append_metrics({"epoch": epoch, "test_top1": top1, "images_per_second": 100.0 + epoch})
        signals = {"step": [epoch] * 2, "block": [0, 1], "dispersion": [0.1, 0.2], "zscore": [0.0, 0.0]}
        rows = pd.DataFrame(signals | {"slope": [4.0, 4.1], "entropy": [[0.5, 0.6], [0.7, 0.8]]})
        rows.to_parquet(run.signals / f"epoch-{epoch:04d}.parquet")
    summary = {"last_top1": top1, "best_top1": top1, "epochs": epochs, "parameters": 5, "seconds": 1.0}
    run.write_summary(
        summary | {"peak_memory_mb": 9.0, "policy": recipe.policy.kind, "seed": recipe.seed, "finished": True}
    )
    return folder


def test_a_run_is_read_with_its_signals(tmp_path):
    (run,) = load_runs([write_run(tmp_path / "a")])
    assert list(run.metrics["epoch"]) == [0, 1]
    signals = run.signals()
    assert list(signals["epoch"]) == [0, 0, 1, 1]
    assert {"step", "block", "dispersion", "zscore", "slope", "entropy"} <= set(signals.columns)
    assert run.observations() is None
    assert run.applied["device"] == "cpu"


def test_heads_are_reduced_block_by_block(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "observations").mkdir()
    lists = {"entropy": [[0.2, 0.4], [0.1, 0.1, 0.7]], "gini": [[0.5, 0.7], [0.9, 0.9, 0.6]]}
    rows = pd.DataFrame({"step": [0, 0], "block": [0, 1], "temperature": [0.25, 0.25]} | lists)
    rows.to_parquet(folder / "observations" / "epoch-0000.parquet")
    rows.assign(step=1, gini=None).to_parquet(folder / "observations" / "epoch-0001.parquet")
    found = load_runs([folder])[0].over_heads.sort_values(["epoch", "block"])
    assert found["epoch"].tolist() == [0, 0, 1, 1]
    assert found["dispersion"].tolist() == pytest.approx([0.1, 0.08**0.5] * 2)
    assert "gini" not in found  # one epoch lacks it
    (folder / "observations" / "epoch-0001.parquet").unlink()
    assert load_runs([folder])[0].over_heads["gini"].tolist() == pytest.approx([0.6, 0.8])


def test_the_table_has_a_row_per_run_and_a_column_per_difference(tmp_path):
    settings = [{"policy.kind": "fixed"}, {"policy.gain": -0.5, "seed": 3}, {"model.time_steps": 2}]
    runs = load_runs(write_run(tmp_path / str(n), chosen) for n, chosen in enumerate(settings))
    found = table(runs)
    assert list(found["label"]) == ["fixed", "sage gain=-0.5", "sage"]
    assert list(found["time_steps"]) == [4, 4, 2]
    assert list(found["recipe.policy.gain"]) == [0.5, -0.5, 0.5]
    assert found["images_per_second"].iloc[0] == 101.0  # of epochs with 100 and 101, the first warms up
    assert field_columns(found) == ["recipe.policy.gain"]
    promised = {"folder", "data", "policy", "label", "time_steps", "seed", "last_top1", "best_top1", "seconds"}
    assert promised | {"images_per_second", "peak_memory_mb", "parameters"} <= set(found.columns)


def test_a_study_may_bring_its_own_labels(tmp_path):
    runs = load_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", {"policy.gain": -0.5})])
    assert list(table(runs, {"b": "broaden"})["label"]) == ["sage", "broaden"]


def test_nan_accuracies_are_read_as_nan(tmp_path):
    folder = write_run(tmp_path / "a", top1=math.nan)
    assert math.isnan(table(load_runs([folder]))["last_top1"].iloc[0])


def test_recording_is_no_difference_in_a_label(tmp_path):
    runs = load_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", {"observe.temperatures": [0.25]})])
    found = table(runs)
    assert list(found["label"]) == ["sage", "sage"]
    assert list(found["recipe.observe.temperatures"]) == [(), (0.25,)]


def test_runs_of_different_recipes_are_compared_only_if_asked(tmp_path):
    runs = load_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", {"lr": 0.1, "seed": 5})])
    assert recipe_differences(runs) == {"lr": [0.005, 0.1]}
    with pytest.raises(ResultError, match=r"different recipes, or .*:\n  lr: 0.005 or 0.1"):
        require_comparable(runs)
    require_comparable(runs, ["lr"])
    require_comparable(runs[:1])


def assert_refused(tmp_path, message, harm):
    folder = write_run(tmp_path / "run")
    harm(folder)
    with pytest.raises(ResultError, match=message) as told:
        load_runs([folder])
    assert str(folder) in str(told.value)


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(ResultError, match=r"there is no folder .*nowhere"):
        load_runs([tmp_path / "nowhere"])
    with pytest.raises(ResultError, match="no run to read"):
        load_runs([])


def test_folders_that_are_not_runs_are_named(tmp_path):
    assert_refused(tmp_path, "has no recipe.yaml", lambda folder: (folder / "recipe.yaml").unlink())


def test_unfinished_runs_are_named(tmp_path):
    assert_refused(tmp_path, "is not finished: 2 of 2 epochs", lambda folder: (folder / "summary.json").unlink())


@pytest.mark.parametrize("text", ["{", '{"last_top1": 1.0}'])
def test_half_written_summaries_are_named(tmp_path, text):
    assert_refused(tmp_path, "half-written|another version", lambda folder: (folder / "summary.json").write_text(text))


def test_lost_epochs_are_named(tmp_path):
    line = json.dumps({"epoch": 0}) + "\n{"
    assert_refused(
        tmp_path, "2 epochs were trained, metrics.jsonl has 1", lambda f: (f / "metrics.jsonl").write_text(line)
    )


def test_runs_of_another_version_are_named_with_it(tmp_path):
    def harm(folder):
        text = (folder / "recipe.yaml").read_text().replace("batch_size:", "batch:")
        (folder / "recipe.yaml").write_text(text)

    assert_refused(tmp_path, r"another version of sage-snn \(0.0.9\)(.|\n)*batch: no such field", harm)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: [", b"- 1"])
def test_unreadable_recipes_are_named(tmp_path, content):
    assert_refused(
        tmp_path, "cannot be read|holds no recipe", lambda folder: (folder / "recipe.yaml").write_bytes(content)
    )


def test_unreadable_signals_are_named(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "signals" / "epoch-0001.parquet").write_bytes(b"PAR1 torn")
    (run,) = load_runs([folder])
    with pytest.raises(ResultError, match=r"epoch-0001\.parquet cannot be read"):
        run.signals()


@pytest.mark.parametrize("damaged", [b"{", b'{"index_columns": [7]}'])
def test_what_pandas_wrote_for_itself_into_signals_may_be_damaged(tmp_path, damaged):
    folder = write_run(tmp_path / "a")
    part = folder / "signals" / "epoch-0000.parquet"
    rows = pq.read_table(part)
    pq.write_table(rows.replace_schema_metadata({b"pandas": damaged}), part)
    assert load_runs([folder])[0].signals()["slope"].tolist() == [4.0, 4.1] * 2


def test_sixty_runs_are_read_in_seconds(tmp_path):
    folders = [write_run(tmp_path / str(n), {"seed": n}) for n in range(60)]
    started = time.process_time()
    assert len(table(load_runs(folders))) == 60
    assert time.process_time() - started < 20  # takes two: only a blunder takes longer
