import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sage_snn.studies.figures import figures_of, save
from sage_snn.studies.figures.style import COLOURS, style, styles
from sage_snn.studies.results import load_runs

_spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(synthetic)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return load_runs(synthetic.write_study(root, time_steps=(2, 4), seeds=(1, 2, 3), observed=(2, 4)))


@pytest.fixture(scope="module")
def figures(runs):
    return {figure.name: figure for figure in figures_of(runs)}


def test_every_family_is_drawn_when_its_data_exists(figures):
    families = {name.split("-")[0] for name in figures}
    assert families == {
        *("accuracy", "difference", "curves", "slopes", "heads", "dead", "firing", "gini", "temperature"),
        "overhead",
    }


@pytest.mark.slow
def test_files_hold_the_figure_three_times(figures, tmp_path):
    for figure in figures.values():
        png, pdf, csv = save(figure, tmp_path)
        assert png.read_bytes()[:4] == b"\x89PNG"
        assert png.stat().st_size > 5000
        assert pdf.read_bytes()[:4] == b"%PDF"
        assert len(pd.read_csv(csv)) == len(figure.data)


def test_plotly_draws_every_figure(figures):
    for figure in figures.values():
        drawn = figure.plotly()
        assert len(drawn.data) > 0
        assert all(axis.title.text for axis in drawn.select_yaxes(row=1, col=1))


def test_accuracy_holds_every_seed_beside_the_interval_of_its_group(figures):
    data = figures["accuracy"].data
    rows = data[(data["label"] == "sage") & (data["time_steps"] == 4)]
    expected = [80 + 4 + 0.5 + 0.1 * ((7 * seed + 12) % 5) + 0.08 * seed for seed in (1, 2, 3)]
    assert rows["value"].tolist() == pytest.approx(expected)
    assert rows["mean"].iloc[0] == pytest.approx(np.mean(expected))
    reach = stats.t.ppf(0.975, 2) * np.std(expected, ddof=1) / 3**0.5
    assert rows["high"].iloc[0] == pytest.approx(np.mean(expected) + reach)


def test_differences_are_paired_by_seed(figures):
    data = figures["difference"].data
    rows = data[(data["label"] == "sage") & (data["time_steps"] == 4)].set_index("seed")["value"]
    # 0.5 for sage, and 0.02 per letter of the policy's name and seed
    assert rows.to_dict() == pytest.approx({seed: 0.5 + 0.02 * (4 - 5) * seed for seed in (1, 2, 3)})
    assert set(data["label"]) == {"learnable", "sage"}


def test_curves_give_the_mean_and_range_of_seeds(figures, runs):
    data = figures["curves"].data
    last = data[(data["panel"] == "digits, T = 2") & (data["label"] == "fixed") & (data["epoch"] == 3)].iloc[0]
    values = [r.summary["last_top1"] for r in runs if r.folder.name.startswith("fixed-t2")]
    assert last["test_top1"] == pytest.approx(np.mean(values))
    assert (last["low"], last["high"]) == pytest.approx((min(values), max(values)))


def test_head_map_is_the_deviation_over_the_steps_of_an_epoch(figures, runs):
    name = next(name for name in figures if name.startswith("heads") and "sage" in name)
    data = figures[name].data
    run = next(r for r in runs if r.folder.name == "sage-t4-s1")
    signals = run.signals()
    part = signals[(signals["epoch"] == 2) & (signals["block"] == 1)]
    expected = np.array(part["entropy"].tolist()).std(0)
    rows = data[(data["epoch"] == 2) & (data["block"] == "block 1")].sort_values("head")
    assert rows["deviation"].tolist() == pytest.approx(expected.tolist())


def test_dead_heads_are_those_of_entropy_one(figures):
    data = figures["dead-heads"].data
    sage = data[data["label"] == "sage"].set_index(["block", "seed"])["value"]
    assert sage[("block 0", 1)] == 1
    assert sage.sum() == 1


def test_dispersion_is_the_population_deviation_over_heads(figures, runs):
    name = next(name for name in figures if name.startswith("temperature") and "fixed" in name)
    data = figures[name].data
    row = data[(data["block"] == "block 1") & (data["temperature"] == "temperature 0.5") & (data["step"] == 7)].iloc[0]
    seen = [r.observations() for r in runs if r.folder.name.startswith("fixed-t4")]
    rows = [o[(o["block"] == 1) & (o["temperature"] == 0.5) & (o["step"] == 7)]["entropy"].iloc[0] for o in seen]
    assert row["value"] == pytest.approx(np.mean([np.std(heads) for heads in rows]))
    assert row["runs"] == 3


def test_a_network_wide_slope_is_one_curve(figures):
    name = next(name for name in figures if name.startswith("slopes") and "learnable" in name)
    data = figures[name].data
    assert set(data["block"]) == {"all blocks"}
    assert set(data["measure"]) == {"slope"}
    assert data.set_index("step")["value"][10] == pytest.approx(4.1)


def counting(tmp_path, *epochs_by_seed):
    """A run per seed of which an epoch counted these spikes, or None."""
    settings = {"policy.kind": "fixed", "epochs": len(epochs_by_seed[0])}
    made = [
        synthetic.write_run(tmp_path / str(seed), settings | {"seed": seed}, top1=50.0)
        for seed in range(1, len(epochs_by_seed) + 1)
    ]
    return [
        replace(run, metrics=run.metrics.assign(firing_rates=list(epochs)))
        for run, epochs in zip(load_runs(made), epochs_by_seed, strict=True)
    ]


def firing(runs):
    return [figure for figure in figures_of(runs) if figure.name == "firing"]


def test_firing_rates_are_percent_per_node_with_the_range_of_seeds(tmp_path):
    query, first, stage = "blocks.1.attention.query.lif", "blocks.0.mlp.first.lif", "stem.stages.0.lif"
    one = ({stage: 0.5, first: 0.02, query: 0.1}, {stage: 0.25, first: 0.04, query: 0.0})
    two = ({stage: 0.25, first: 0.06, query: 0.3}, {stage: 0.25, first: 0.04, query: 0.2})
    (figure,) = firing(counting(tmp_path, one, two))
    rows = figure.data.set_index(["panel", "curve", "epoch"])[["rate", "low", "high"]]
    assert rows.loc[("query", "block 1", 0)].tolist() == pytest.approx([20, 10, 30])
    assert rows.loc[("query", "block 1", 1)].tolist() == pytest.approx([10, 0, 20])
    assert rows.loc[("mlp 1", "block 0", 0)].tolist() == pytest.approx([4, 2, 6])
    assert rows.loc[("stem", "stages 0", 0)].tolist() == pytest.approx([37.5, 25, 50])
    assert figure.caption.endswith("Silent in the last epoch, at 0 %: query, block 1 (1 of 2 seeds).")


def test_nodes_that_fire_again_are_not_silent(tmp_path):
    (figure,) = firing(counting(tmp_path, ({"blocks.0.attention.lif": 0.0}, {"blocks.0.attention.lif": 0.1})))
    assert figure.data["rate"].tolist() == pytest.approx([0, 10])
    assert figure.data[["panel", "curve"]].iloc[0].tolist() == ["attention", "block 0"]
    assert figure.caption.endswith("One run, seed 1. No node is silent in the last epoch.")


def test_a_silent_network_is_told_in_few_words(tmp_path):
    (figure,) = firing(counting(tmp_path, [{f"blocks.{n}.mlp.first.lif": 0.0 for n in range(9)}]))
    assert "mlp 1, block 0; mlp 1, block 1;" in figure.caption
    assert figure.caption.endswith("mlp 1, block 5 and 3 more.")


def test_runs_that_counted_no_spikes_have_no_figure_of_them(tmp_path):
    counted = {"stem.stages.0.lif": 0.5}
    runs = counting(tmp_path, (None, counted))
    (resumed,) = firing(runs)  # the first epoch is an older version's
    assert resumed.data["epoch"].tolist() == [1]
    old = [replace(run, metrics=run.metrics.drop(columns="firing_rates")) for run in runs]
    assert firing(old) == []


def test_long_training_keeps_the_last_epoch_of_firing_rates(tmp_path):
    (figure,) = firing(counting(tmp_path, [{"stem.stages.0.lif": 0.5}] * 100))
    assert figure.data["epoch"].tolist() == list(range(0, 100, 3))


def test_overhead_is_the_time_of_a_step(figures, runs):
    # synthetic runs do 100 images a second
    assert set(figures["overhead"].data["value"]) == {10.0 * runs[0].recipe.batch_size}


def test_sensitivity_needs_three_slopes(tmp_path):
    slopes = (2.0, 4.0, 8.0)
    made = [
        synthetic.write_run(
            tmp_path / f"{slope}-{seed}",
            {"policy.kind": "fixed", "policy.slope": slope, "seed": seed},
            top1=90 - slope + seed,
        )
        for slope in slopes
        for seed in (1, 2)
    ]
    names = {figure.name: figure for figure in figures_of(load_runs(made))}
    assert names["sensitivity"].data["slope"].tolist() == [2.0, 4.0, 8.0]
    assert names["sensitivity"].data["mean"].tolist() == [89.5, 87.5, 83.5]
    save(names["sensitivity"], tmp_path / "out")
    assert "sensitivity" not in {figure.name for figure in figures_of(load_runs(made[:4]))}


def test_one_run_is_drawn_without_intervals(tmp_path):
    run = synthetic.write_run(tmp_path / "one", {"policy.kind": "fixed"}, top1=50.0)
    figures = figures_of(load_runs([run]))
    assert [figure.name for figure in figures] == ["accuracy", "curves", "firing"]
    for figure in figures:
        save(figure, tmp_path / "figures")
        assert figure.data["low"].isna().all()


def test_long_training_is_thinned(tmp_path):
    run = synthetic.write_run(tmp_path / "long", {"policy.kind": "sage", "seed": 3}, top1=50.0, steps=400)
    slopes = next(figure for figure in figures_of(load_runs([run])) if figure.name == "slopes")
    assert slopes.data.groupby(["measure", "block"]).size().max() <= 150


def test_runs_that_ended_in_nan_are_left_out_of_the_bars(tmp_path):
    broken = synthetic.write_run(tmp_path / "a", {"policy.kind": "fixed", "seed": 1}, top1=float("nan"))
    whole = synthetic.write_run(tmp_path / "b", {"policy.kind": "sage", "seed": 1}, top1=50.0)
    accuracy = figures_of(load_runs([broken, whole]))[0]
    assert accuracy.data["label"].tolist() == ["sage"]
    save(accuracy, tmp_path / "figures")


def test_names_are_text_in_both_renderers(tmp_path):
    hostile = "<b>$x_1$</b> & 100%"
    run = synthetic.write_run(tmp_path / "one", {"policy.kind": "fixed"}, top1=50.0)
    other = synthetic.write_run(tmp_path / "two", {"policy.kind": "sage"}, top1=51.0)
    figure = figures_of(load_runs([run, other]), {"two": hostile})[0]
    save(figure, tmp_path / "figures")
    assert "<b>" not in figure.plotly().to_json().replace("\\u003c", "<")


def test_policies_look_the_same_in_every_figure():
    assert styles(["sage", "fixed"])["sage"] == styles(["fixed", "learnable", "sage"])["sage"]
    assert len({(style(i).colour, style(i).dash) for i in range(30)}) == 30
    assert "#000000" not in COLOURS
