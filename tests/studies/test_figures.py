import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sage_snn.recipes import POLICIES
from sage_snn.studies.figures import figures_of, save, unread
from sage_snn.studies.figures.panels import whole_ticks
from sage_snn.studies.figures.style import COLOURS, style, styles
from sage_snn.studies.figures.tidy import MOST
from sage_snn.studies.results import load_runs, table

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
        *("accuracy", "difference", "curves", "slopes", "heads", "idle", "firing", "gini", "temperature"),
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


def test_idle_heads_are_those_of_entropy_one(figures):
    data = figures["idle-heads"].data
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


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_short_axes_of_epochs_have_whole_numbers_from_one_on(tmp_path, epochs):
    settings = {"policy.kind": "sage", "epochs": epochs, "policy.warmup_epochs": 0}
    run = synthetic.write_run(tmp_path / "one", settings, top1=50.0)
    drawn = [f for f in figures_of(load_runs([run])) if f.name.startswith(("curves", "firing", "heads"))]
    assert len(drawn) == (3 if epochs > 1 else 2)
    for figure in drawn:
        traces = [np.array(trace.x) for trace in figure.plotly().data if trace.x is not None]
        assert {float(x) for trace in traces for x in trace} == set(range(1, epochs + 1)), figure.name
        axis = figure.plotly().layout.xaxis
        assert (axis.tick0, axis.dtick) == (1, 1)
        canvas = figure.matplotlib()
        canvas.draw_without_rendering()
        panel = canvas.axes[0]
        low, high = panel.get_xlim()
        ticks = [tick for tick in panel.get_xticks() if low <= tick <= high]
        assert ticks == list(range(1, epochs + 1)), figure.name


def test_long_axes_are_left_to_the_renderer():
    assert whole_ticks(range(310)) == whole_ticks([1.0, 3.5]) == whole_ticks([]) == {}
    assert whole_ticks(range(1, 12)) == {"tick0": 1, "dtick": 2}


def renamed(folder, column):
    """The run as if its signals had been written under another name."""
    for part in sorted((folder / "signals").glob("*.parquet")):
        pd.read_parquet(part).rename(columns={"entropy": column}).to_parquet(part)
    return folder


@pytest.mark.parametrize("column", ["gini", "random", "constant", "firing_rate", "readings", "entropy"])
def test_figures_of_heads_leave_out_runs_without_entropy_and_say_so(tmp_path, column):
    settings = {"policy.kind": "sage", "policy.signal": "gini", "seed": 1}
    other = renamed(synthetic.write_run(tmp_path / "gini", settings, top1=50.0), column)
    runs = load_runs([other, synthetic.write_run(tmp_path / "sage", {"policy.kind": "sage"}, top1=50.0)])
    names = [figure.name for figure in figures_of(runs)]
    assert [name for name in names if name.startswith("heads")] == ["heads"]
    assert any(name.startswith("slopes") and "gini" in name for name in names)
    labels = list(table(runs)["label"])
    assert (
        unread(runs, labels)
        == "No entropy per head was recorded for sage signal=gini: the figures of heads leave them out."
    )
    assert unread(runs[1:], labels[1:]) == ""
    alone = [figure.name for figure in figures_of(runs[:1])]
    assert not [name for name in alone if name.startswith(("heads", "idle"))]
    assert unread(runs[:1], labels[:1])


def test_a_signal_without_a_spread_has_slopes_all_the_same(tmp_path):
    folder = synthetic.write_run(tmp_path / "run", {"policy.kind": "sage"}, top1=50.0)
    for part in sorted((folder / "signals").glob("*.parquet")):
        pd.read_parquet(part)[["step", "block", "slope"]].to_parquet(part)
    (slopes,) = [figure for figure in figures_of(load_runs([folder])) if figure.name == "slopes"]
    assert set(slopes.data["measure"]) == {"slope"}


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


def test_every_kind_of_policy_has_a_label_a_look_and_a_curve_of_its_own(tmp_path):
    made = []
    for kind in POLICIES.names:
        folder = synthetic.write_run(tmp_path / kind, {"policy.kind": kind}, top1=50.0)
        made.append(folder)
        for part in sorted((folder / "signals").glob("*.parquet")):
            rows = pd.read_parquet(part)
            rows.assign(slope=4 + 0.01 * rows["step"]).to_parquet(part)
    runs = load_runs(made)
    assert list(table(runs)["label"]) == list(POLICIES.names)
    looks = styles(POLICIES.names)
    assert len({(look.colour, look.dash, look.marker) for look in looks.values()}) == len(looks)
    drawn = {figure.name: figure for figure in figures_of(runs)}
    assert drawn["accuracy"].data["label"].tolist() == list(POLICIES.names)
    assert sum(name.startswith("slopes") for name in drawn) == min(MOST, len(POLICIES.names))


def test_policies_look_the_same_in_every_figure():
    assert styles(["sage", "fixed"])["sage"] == styles(["fixed", "learnable", "sage"])["sage"]
    assert len({(style(i).colour, style(i).dash) for i in range(30)}) == 30
    assert "#000000" not in COLOURS
