"""The page of a study of policies, from runs that nobody trained."""

import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sage_snn.studies.correction import holm, p_value
from sage_snn.studies.figures import save
from sage_snn.studies.page.markup import Cell, Column, Markup, table
from sage_snn.studies.policies.entry import best_fixed, entries
from sage_snn.studies.policies.figure import policies_figure
from sage_snn.studies.policies.moved import what_moved
from sage_snn.studies.policies.section import policies_section, settings_of
from sage_snn.studies.policies.verdict import verdicts
from sage_snn.studies.report import write_report
from sage_snn.studies.results import load_runs
from sage_snn.studies.results import table as table_of
from sage_snn.studies.study import parse_study

_spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(synthetic)

SMALL = {"epochs": 2, "warmup_epochs": 0, "cooldown_epochs": 0, "model.dim": 24, "model.heads": 3, "model.depth": 2}
VARIANTS = [
    {"label": "fixed", "settings": {"policy.kind": "fixed"}},
    {"label": "slope 2", "settings": {"policy.kind": "fixed", "policy.slope": 2}},
    {"label": "sage", "settings": {"policy.kind": "sage"}},
    {"label": "scheduled", "settings": {"policy.kind": "scheduled", "policy.schedule_epochs": 2}},
]
# Policy -> what it gains at seeds 1, 2, 3; at T = 2 it is double.
GAINS = {"fixed": (0, 0, 0), "slope 2": (0.1, -0.1, 0.3), "sage": (1.0, -0.5, 0.2), "scheduled": (2.0, 2.1, 1.9)}
STUDY = {
    "name": "mine",
    "recipe": "digits",
    "phase": "search",
    "settings": SMALL,
    "variants": VARIANTS,
    "axes": {"model.name": ["spikformer", "vgg11"], "model.time_steps": [1, 2], "seed": [1, 2, 3]},
    "without": [{"model.name": "vgg11", "model.time_steps": 2}, {"model.name": "vgg11", "policy.kind": "sage"}],
    "compare": {"baseline": "fixed"},
    "report": ["policies"],
}


def write_policies(root, **changes):
    """The study with these changes, its finished runs, and their table."""
    study = parse_study(STUDY | changes)
    folders = []
    for planned in study.runs():
        recipe, name = planned.recipe, planned.label.split(" model=")[0]
        gain = GAINS[name][recipe.seed - 1] * recipe.model.time_steps
        cost = {"seconds": 100.0 + 2 * len(name), "peak_memory_mb": 300.0 + recipe.seed + len(name)}
        folders.append(
            synthetic.write_run(root / planned.key, top1=50 + recipe.seed + gain, recipe=recipe, more=cost, steps=2)
        )
    runs = load_runs(folders)
    return study, runs, table_of(runs, {planned.key: planned.label for planned in study.runs()})


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return write_policies(tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def lines(measured):
    _, runs, rows = measured
    return entries(runs, rows, "fixed")


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    corrected = holm([0.01, math.nan, 0.03])
    assert (corrected[0], corrected[2]) == pytest.approx((0.02, 0.03))
    assert math.isnan(corrected[1])


def test_the_p_value_is_that_of_a_paired_t_test():
    one, other = [1.0, 2.5, 0.3, 1.9], [0.2, 1.9, 0.8, 0.1]
    differences = list(np.subtract(one, other))
    assert p_value(differences) == pytest.approx(stats.ttest_rel(one, other).pvalue)
    assert (p_value([0.0, 0.0]), p_value([0.5, 0.5])) == (1.0, 0.0)
    assert math.isnan(p_value([1.0]))
    assert math.isnan(p_value([1.0, math.nan]))


def test_a_line_per_policy_from_the_highest_to_the_lowest_after_the_baseline(lines):
    assert [line.name for line in lines] == ["fixed", "scheduled", "sage", "slope 2"]
    assert [line.is_baseline for line in lines] == [True, False, False, False]
    assert settings_of(lines) == ["Spikformer-2-24, T = 1", "Spikformer-2-24, T = 2", "VGG-11, T = 1"]


def test_differences_are_paired_by_seed_in_each_setting_and_averaged_over_them(lines):
    scheduled, sage = lines[1], lines[2]
    assert scheduled.differences["VGG-11, T = 1"].by_seed.to_dict() == pytest.approx({1: 2.0, 2: 2.1, 3: 1.9})
    assert scheduled.over_all.by_seed.to_dict() == pytest.approx({1: 8 / 3, 2: 8.4 / 3, 3: 7.6 / 3})
    assert list(sage.differences) == ["Spikformer-2-24, T = 1", "Spikformer-2-24, T = 2"]
    assert sage.over_all.by_seed.to_dict() == pytest.approx({1: 1.5, 2: -0.75, 3: 0.3})
    reach = stats.t.ppf(0.975, 2) * np.std([1.5, -0.75, 0.3], ddof=1) / 3**0.5
    assert (sage.over_all.seen.low, sage.over_all.seen.high) == pytest.approx((0.35 - reach, 0.35 + reach))


def test_verdicts_are_corrected_for_the_number_of_comparisons(lines):
    by_name = {line.name: line for line in lines}
    raw = {name: p_value(list(by_name[name].over_all.by_seed)) for name in ("scheduled", "sage", "slope 2")}
    assert by_name["scheduled"].over_all.corrected == pytest.approx(3 * raw["scheduled"])
    assert by_name["scheduled"].over_all.verdict == "above"
    assert by_name["sage"].over_all.verdict == by_name["slope 2"].over_all.verdict == "cannot tell"
    cells = [one for line in lines for one in line.differences.values()]
    assert len(cells) == 8
    smallest = min(p_value(list(one.by_seed)) for one in cells)
    assert min(one.corrected for one in cells) == pytest.approx(8 * smallest)


def test_a_difference_that_is_apart_alone_is_not_apart_among_many(tmp_path):
    # p of 2.0, 2.1, 1.9 is 0.0008: above for one comparison, and for the eight of the grid, not for a hundred.
    alone = p_value([2.0, 2.1, 1.9])
    assert holm([alone] + [0.9] * 99)[0] > 0.05 > holm([alone] + [0.9] * 7)[0]


def test_cost_is_a_ratio_of_times_and_a_difference_of_memory(lines):
    by_name = {line.name: line for line in lines}
    assert by_name["scheduled"].time_ratio == pytest.approx(118 / 110)
    assert by_name["scheduled"].memory_mb == pytest.approx(4)
    assert (by_name["fixed"].time_ratio, by_name["fixed"].memory_mb) == (1.0, 0.0)


def test_what_moved_is_told_from_the_recorded_values(lines, tmp_path):
    by_name = {line.name: line.moved for line in lines}
    assert by_name["fixed"] == "slope 4"
    assert by_name["slope 2"] == "slope 2"
    assert by_name["scheduled"] == "slope 2.00 to 4.00, end 4.00"
    assert re.fullmatch(
        r"slope 3\.\d\d to 4\.\d\d, end \d\.\d\d|slope 4\.\d\d to 4\.\d\d, end 4\.\d\d", by_name["sage"]
    )
    run = synthetic.write_run(tmp_path / "run", {"policy.kind": "fixed", "epochs": 1}, top1=50.0)
    part = run / "signals" / "epoch-0000.parquet"
    rows = pd.read_parquet(part)
    # Several values a block, as finer policies have, and another target; None where a policy has none.
    rows["slope"] = [[3.0, 5.0]] * (len(rows) - 2) + [[4.0, 4.5]] * 2
    rows["threshold"] = [None] * (len(rows) - 1) + [0.8]
    rows.to_parquet(part)
    assert what_moved(load_runs([run])) == "slope 3.00 to 5.00, end 4.25; threshold 0.8"
    for file in (run / "signals").iterdir():
        file.unlink()
    assert what_moved(load_runs([run])) == "not recorded"


def test_sentences_name_who_is_told_apart_and_the_best_fixed_slope(lines):
    whole, single, fixed = verdicts(lines, settings_of(lines))
    assert whole.startswith("Over 3 settings: scheduled is above fixed by ")
    assert whole.endswith("Cannot tell the other 2 from it.")
    assert "scheduled is above at VGG-11, T = 1 by" in single
    assert "sage" not in whole + single
    assert fixed == "Of 2 fixed slopes slope 2 has the highest mean (+0.13), which is not told from the baseline."
    assert best_fixed(lines).name == "slope 2"


def test_without_a_pair_nothing_is_claimed(tmp_path):
    _, runs, rows = write_policies(tmp_path, axes={"seed": [1], "model.name": ["spikformer"]}, without=[])
    one = entries(runs, rows, "fixed")
    assert {line.over_all.verdict for line in one} == {"no interval"}
    assert verdicts(one, settings_of(one))[0] == (
        "In this setting: nothing can be told from fixed, since an interval needs two seeds with a number."
    )
    page = policies_section(one)
    assert "All settings" not in page
    assert ">above<" not in page
    alone = entries(runs[:1], rows.iloc[:1], "fixed")
    assert verdicts(alone, settings_of(alone)) == [
        "There is nothing to compare: a baseline and another policy are needed."
    ]
    assert policies_figure(alone) is None


def test_a_run_without_a_number_is_not_compared(measured):
    _, runs, rows = measured
    broken = rows.copy()
    broken.loc[broken["policy"] == "sage", "last_top1"] = math.nan
    sage = next(line for line in entries(runs, broken, "fixed") if line.name == "sage")
    assert {one.verdict for one in sage.differences.values()} == {"no interval"}
    assert "sage" not in set(policies_figure(entries(runs, broken, "fixed")).data["policy"])


def test_a_seed_that_one_setting_lacks_is_left_out_of_the_mean_over_all(measured):
    _, runs, rows = measured
    lacking = (rows["seed"] == 2) & (rows["time_steps"] == 2) & rows["label"].str.startswith("scheduled")
    kept = rows[~lacking].reset_index(drop=True)
    left = [run for run, gone in zip(runs, lacking, strict=True) if not gone]
    scheduled = next(line for line in entries(left, kept, "fixed") if line.name == "scheduled")
    assert list(scheduled.over_all.by_seed.index) == [1, 3]
    assert len(scheduled.differences["Spikformer-2-24, T = 1"].by_seed) == 3


def test_the_table_has_a_line_per_policy_and_marks_what_stands(lines):
    page = policies_section(lines)
    first = page[: page.index("</table>")]
    assert first.count("<tr") == 5
    assert re.findall(r'class="verdict (\w+)">([\w ]+)<', first) == [
        ("supported", "above"),
        ("open", "cannot tell"),
        ("open", "cannot tell"),
    ]
    assert '<td class="number apart" data-value="2.0' in first
    assert first.count("the baseline<") == 1
    assert "Holm" in page
    assert "(3 over all settings, 8 in single ones)" in page
    assert page.count("<small>[") == 8 + 3


def test_a_cell_may_hold_markup_and_a_class():
    cells = table([{"a": Cell(Markup("<b>1</b>"), 1.0, "apart")}], [Column("a", "A", ".1f")], "c")
    assert '<td class="number apart" data-value="1.0"><b>1</b></td>' in cells


def test_the_figure_has_a_panel_per_setting_in_the_order_of_the_table(lines, tmp_path):
    figure = policies_figure(lines)
    assert figure.drawing.order == ("scheduled", "sage", "slope 2")
    assert list(figure.data["setting"].unique()) == settings_of(lines)
    drawn = figure.plotly()
    titles = [note.text for note in drawn.layout.annotations]
    assert titles == settings_of(lines)
    zero = [shape for shape in drawn.layout.shapes if (shape.x0, shape.x1) == (0, 0)]
    assert len(zero) == 3
    full = [trace for trace in drawn.data if trace.marker.symbol == "circle"]
    assert {text.split(":")[0] for trace in full for text in trace.text} == {"scheduled"}
    ranges = {tuple(axis.range) for axis in drawn.select_xaxes()}
    assert len(ranges) == 1
    low, high = ranges.pop()
    assert low < figure.data[["value", "low"]].min().min()
    assert high > figure.data[["value", "high"]].max().max()
    assert all(path.stat().st_size > 100 for path in save(figure, tmp_path))


@pytest.mark.slow
def test_the_page_says_what_it_shows_and_has_no_id_twice(tmp_path):
    study, runs, _ = write_policies(tmp_path / "runs", variants=VARIANTS[:2], axes={"seed": [1, 2]}, without=[])
    page = write_report(runs, tmp_path, "mine", study=study).read_text(encoding="utf-8")
    assert "This is a search, on seeds 1 and 2" in page
    body = page.split("<script>", 1)[0]
    ids = re.findall(r' id="([\w-]+)"', body)
    assert len(ids) == len(set(ids))
    assert [name for name in ids if name in ("policies", "figures", "comparison")] == [
        "policies",
        "figures",
        "comparison",
    ]
    assert re.findall(r'<figure id="([\w-]+)"', body)[0] == "policies-differences"
    assert (tmp_path / "figures" / "policies-differences.png").is_file()
    assert "difference" not in re.findall(r'<figure id="([\w-]+)"', body)
