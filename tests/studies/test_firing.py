import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from sage_snn.studies.figures import figures_of
from sage_snn.studies.figures.lines import AT_ZERO
from sage_snn.studies.results import load_runs

_spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(synthetic)


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


def test_a_silent_network_is_marked_in_both_renderers(tmp_path):
    silent = {"stem.stages.0.lif": 0.5, "blocks.0.attention.query.lif": 0.0, "blocks.0.mlp.first.lif": 0.0}
    (figure,) = firing(counting(tmp_path, (silent, silent)))
    assert figure.title.endswith("(silent network)")
    assert figure.caption.startswith("No neuron fires in the last epoch from blocks.0.attention.query on (seed 1).")
    panels = ["query: silent", "mlp 1: silent", "stem"]
    assert [axis.get_title() for axis in figure.matplotlib().axes] == panels
    assert [note.text for note in figure.plotly().layout.annotations] == panels
    (alone,) = firing(counting(tmp_path / "all", ({"blocks.0.mlp.first.lif": 0.0},) * 2))
    assert alone.matplotlib().axes[0].get_ylim() == AT_ZERO
    assert tuple(alone.plotly().layout.yaxis.range) == AT_ZERO
