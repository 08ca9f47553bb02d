import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from sage_snn.studies.comparison import apart
from sage_snn.studies.figures import figures_of, save
from sage_snn.studies.labels import told
from sage_snn.studies.paper.reported import ORIGINALS, REPORTED, method_called, originals_on
from sage_snn.studies.progress import cost, share
from sage_snn.studies.report import write_report
from sage_snn.studies.results import ResultError, load_runs, require_comparable, table
from sage_snn.studies.study import load_study
from sage_snn.studies.systems.entry import entries, training_words
from sage_snn.studies.systems.markdown import systems_markdown
from sage_snn.studies.systems.published import APART, published, unprinted
from sage_snn.studies.systems.verdict import cautions, verdicts

_spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(synthetic)

SMALL = {"data": "cifar10", "epochs": 4, "warmup_epochs": 0, "cooldown_epochs": 0, "train_images": 4000, "threads": 1}
SMALL |= {"model": {"dim": 24, "heads": 3, "depth": 2}, "policy": {"kind": "fixed"}}
STAGES = [{"name": "ann", "epochs": 5, "seconds": 60.0, "last_top1": 56.0, "time_steps": 1}]
BY_STEPS = {"1": 12.0, "2": 30.0, "4": 44.0, "8": 50.0, "16": 53.0, "32": 54.5, "64": 55.0}
SYSTEMS = {  # label -> how its recipe differs, how much it gains, what its summary has
    "TET": ({"loss": "tet", "lr": 0.001}, 3.0, {}),
    "STBP-tdBN": ({"lr": 0.01}, 0.0, {}),
    "QCFS": ({"lr": 0.1, "model": SMALL["model"] | {"time_steps": 32}}, 0.05, {"epochs": 0, "stages": STAGES}),
}


def activity(seed):
    """Operations of a run; their mean over seeds 1 and 3 is that of seed 2."""
    return {"images": 64, "sops": 1e6 * seed, "macs": 1.0, "energy_uj": 2.5 * seed, "firing_rate": 0.05 * seed}


def write_systems(root, *, seeds=(1, 2, 3), protocols=("own",), **changes):
    """A study of three systems, whose recipes lie beside it, and the runs that follow from it."""
    root.mkdir()
    variants = []
    for label, (recipe, _, _) in SYSTEMS.items():
        file = f"{label.lower()}.yaml"
        about = {"system": label, "authors": f"{label}'s authors"}
        (root / file).write_text(yaml.safe_dump(SMALL | recipe | {"about": about}))
        for protocol in protocols:
            common = {"batch_size": 64} if protocol == "common" else {}
            variants.append({"label": label, "recipe": file, "protocol": protocol, "settings": common})
    fields = {"recipe": "digits", "variants": variants, "axes": {"seed": list(seeds)}} | changes
    (root / "systems.yaml").write_text(yaml.safe_dump(fields))
    study = load_study(root / "systems.yaml")
    folders = [write_planned(root / "runs", planned) for planned in study.runs()]
    return study, load_runs(folders)


def write_planned(root, planned):
    """Accuracies of a system are 50, 51 and 52 for the seeds, and what it gains."""
    _, gain, summary = SYSTEMS[planned.name]
    seed = planned.recipe.seed
    more = summary | {"activity": activity(seed), "seconds": 100.0 + seed}
    if summary:
        more["top1_by_steps"] = {steps: top1 + 0.5 * seed for steps, top1 in BY_STEPS.items()}
    return synthetic.write_run(root / planned.key, top1=49.0 + seed + gain, recipe=planned.recipe, more=more)


def entries_of(study, runs):
    plan = study.runs()
    return entries(plan, runs, table(runs, {planned.key: planned.label for planned in plan}))


def with_top1(runs, by_label):
    """The runs with other accuracies, by the learning rate that tells their system."""
    rates = {recipe["lr"]: label for label, (recipe, _, _) in SYSTEMS.items()}
    return [
        replace(run, summary=run.summary | {"last_top1": by_label[rates[run.recipe.lr]][run.recipe.seed - 1]})
        for run in runs
    ]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return write_systems(tmp_path_factory.mktemp("study") / "own")


def test_a_row_per_system_with_means_and_intervals(measured):
    rows = {entry.name: entry for entry in entries_of(*measured)}
    assert list(rows) == ["TET", "STBP-tdBN", "QCFS"]
    tet = rows["TET"]
    reach = 4.302652729749464 / 3**0.5  # t of two degrees of freedom; the deviation of 53, 54, 55 is one
    assert (tet.last_top1.mean, tet.last_top1.low, tet.last_top1.high) == pytest.approx((54, 54 - reach, 54 + reach))
    assert tet.best_top1.mean == pytest.approx(54.5)
    assert (tet.sops, tet.energy_uj, tet.firing_rate, tet.seconds) == pytest.approx((2e6, 5.0, 0.1, 102.0))
    assert (tet.protocol, tet.network, tet.time_steps, tet.parameters) == ("own", "Spikformer-2-24", 4, 1000)
    assert (rows["QCFS"].time_steps, rows["QCFS"].training) == (32, "ann 5 epochs, then converted")
    assert tet.training == "4 epochs"
    assert tet.source == "TET's authors"
    assert all(entry.is_reduced for entry in rows.values())


def test_stages_are_told_in_words():
    assert training_words({"epochs": 3, "stages": STAGES}) == "ann 5 epochs, then 3"
    two = [*STAGES, {"name": "tuning", "epochs": 1}]
    assert training_words({"epochs": 0, "stages": two}) == "ann 5 epochs, tuning 1 epoch, then converted"
    assert training_words({"epochs": 1}) == "1 epoch"
    assert training_words({"epochs": 300, "stages": []}) == "300 epochs"


def test_the_interval_of_unpaired_runs_is_welch_s():
    one, other = [53.0, 54.1, 55.3, 52.8], [50.2, 50.0, 50.9]
    theirs = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    seen = apart(one, other)
    assert (seen.low, seen.high) == pytest.approx((theirs.low, theirs.high))
    assert (seen.mean, seen.n) == pytest.approx((53.8 - 151.1 / 3, 3))
    assert np.isnan(apart([1.0], other).low)
    assert (apart([2.0, 2.0], [1.0, 1.0]).low, apart([2.0, 2.0], [1.0, 1.0]).high) == (1.0, 1.0)
    assert np.isnan(apart([1.0, float("nan")], other).low)


def test_the_verdict_names_pairs_that_are_apart_and_those_of_which_nobody_can_tell(measured):
    (said,) = verdicts(entries_of(*measured))
    # Both deviate by one over three seeds: four degrees of freedom, and sqrt(2/3) as the error of a difference.
    reach = 2.7764451051977987 * (2 / 3) ** 0.5
    assert said.startswith("On CIFAR-10, each by its own recipe: 2 of 3 pairs are apart: ")
    assert f"TET is above STBP-tdBN by {3 - reach:.2f} to {3 + reach:.2f} points and QCFS by" in said
    assert said.endswith(f"Cannot tell of STBP-tdBN and QCFS [−{reach + 0.05:.2f}, +{reach - 0.05:.2f}].")


def test_without_a_pair_apart_nothing_is_ranked(measured):
    study, runs = measured
    noisy = {"TET": (50, 60, 55), "STBP-tdBN": (51, 52, 58), "QCFS": (45, 57, 54)}
    (said,) = verdicts(entries_of(study, with_top1(runs, noisy)))
    assert "cannot tell any two systems apart, all 3 intervals hold zero (TET and STBP-tdBN [−" in said
    assert "above" not in said


def test_one_seed_tells_nothing(tmp_path):
    study, runs = write_systems(tmp_path / "one", seeds=(1,))
    rows = entries_of(study, runs)
    (said,) = verdicts(rows)
    assert said.endswith("cannot tell any two systems apart, since an interval needs two seeds of each with a number.")
    assert "above" not in said
    assert len(cautions(rows)) == 1
    assert "| 53.00 | 53.50 |" in systems_markdown(rows)


def test_a_seed_without_a_number_leaves_its_system_out_of_the_verdict(measured):
    study, runs = measured
    broken = {"TET": (53, 54, float("nan")), "STBP-tdBN": (50, 51, 52), "QCFS": (60, 61, 62)}
    (said,) = verdicts(entries_of(study, with_top1(runs, broken)))
    assert "1 of 1 pair is apart: QCFS is above STBP-tdBN by" in said
    assert said.endswith("points. 2 pairs have no interval, for want of seeds with a number.")


def test_of_many_pairs_only_the_names_are_told(measured):
    rows = entries_of(*measured)
    (said,) = verdicts([*rows, replace(rows[1], name="RMP-SNN"), replace(rows[0], name="Diet-SNN")])
    # TET and Diet-SNN are three points above the three others, and nothing else is apart.
    assert said.endswith(
        "6 of 10 pairs are apart: TET is above STBP-tdBN, QCFS and RMP-SNN; "
        "Diet-SNN is above STBP-tdBN, QCFS and RMP-SNN. Cannot tell of the other 4, whose intervals hold zero."
    )


def test_systems_are_compared_within_a_protocol_only(tmp_path):
    study, runs = write_systems(tmp_path / "both", protocols=("own", "common"))
    rows = entries_of(study, runs)
    assert [(entry.name, entry.protocol) for entry in rows[:2]] == [("TET", "own"), ("TET", "common")]
    own, common = verdicts(rows)
    assert "each by its own recipe: 2 of 3 pairs" in own
    assert "all by the common recipe: 2 of 3 pairs" in common
    assert cautions(rows)[1].startswith("These are 6 intervals: ")


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (("TET x0.25",), "TET"),
        (("tdBN",), "STBP-tdBN"),
        (("Hybrid",), "Hybrid Training"),
        (("ours", "QCFS"), "QCFS"),
        (("RMP-SNN VGG-16",), "RMP-SNN"),
        (("A", ""), None),
    ],
)
def test_systems_are_known_by_name(names, method):
    assert method_called(*names) == method


def test_originals_are_written_once_and_belong_to_rows_of_the_paper():
    assert {row.method for row in ORIGINALS} <= {row.method for row in REPORTED}
    assert len(set(ORIGINALS)) == len(ORIGINALS)
    assert [(row.network, row.top1) for row in originals_on("cifar10", "QCFS")] == [
        ("ResNet-20", 92.24),
        ("VGG-16", 95.54),
    ]


def test_what_papers_print_stands_beside_with_the_reason(measured):
    rows = {row.method: row for row in published(entries_of(*measured))}
    assert list(rows) == ["TET", "STBP-tdBN", "QCFS"]
    assert rows["QCFS"].paper == "93.25 (ResNet-20, T=32)"
    assert rows["QCFS"].original.startswith("92.24 (ResNet-20, T=32; at T=16 91.62")
    assert rows["QCFS"].why == "92.24 in its own paper"
    assert (rows["TET"].original, rows["TET"].why) == ("94.44 (ResNet-19, T=4)", "the accuracies agree")
    assert unprinted(entries_of(*measured)) == ""


def test_systems_of_which_nothing_is_printed_are_named(measured):
    rows = [replace(entry, data="digits") for entry in entries_of(*measured)[:1]]
    assert published(rows) == []
    assert unprinted(rows) == "The paper of SAGE prints no figure of TET on digits."


def test_the_markdown_holds_the_table(measured):
    text = systems_markdown(entries_of(*measured))
    assert "| System | Protocol | Network | Parameters | T | Seeds | Last top-1 (%) |" in text
    row = "| TET | own | Spikformer-2-24 | 1,000 | 4 | 3 | 54.00 [51.52, 56.48] | 54.50 [52.02, 56.98] |"
    assert f"{row} 10.00 | 2.00 | 5.00 | 2 min | 4 epochs |" in text
    assert APART in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {14, 6}


def test_accuracy_against_steps_is_the_mean_and_range_of_seeds_beside_the_ann(measured):
    study, runs = measured
    names = {planned.key: planned.label for planned in study.runs()}
    (figure,) = [figure for figure in figures_of(runs, names) if figure.name == "steps"]
    data = figure.data.set_index("time_steps")
    assert data.index.tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert data.loc[8, ["top1", "low", "high", "ann"]].tolist() == pytest.approx([51.0, 50.5, 51.5, 56.0])
    assert set(data["label"]) == {"QCFS (own)"}
    drawn = figure.plotly()
    assert (drawn.layout.xaxis.type, drawn.layout.xaxis.tickvals) == ("log", (1, 2, 4, 8, 16, 32, 64))
    assert [(shape.y0, shape.line.color) for shape in drawn.layout.shapes] == [(56.0, "#0072B2")]
    axis = figure.matplotlib().axes[0]
    assert axis.get_xscale() == "log"
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "2", "4", "8", "16", "32", "64"]


def test_steps_of_one_seed_have_no_band_and_of_no_stage_no_line(tmp_path):
    more = {"epochs": 0, "top1_by_steps": {"1": 10.0, "4": None, "2": 20.0}}
    run = synthetic.write_run(tmp_path / "run", {"policy.kind": "fixed"}, top1=20.0, more=more)
    (figure,) = [figure for figure in figures_of(load_runs([run])) if figure.name == "steps"]
    assert figure.data["time_steps"].tolist() == [1, 2]
    assert figure.data[["low", "high", "ann"]].isna().all().all()
    assert not figure.plotly().layout.shapes
    save(figure, tmp_path / "figures")


@pytest.mark.slow
def test_a_page_of_systems_has_them_first_and_pairs_nothing_with_fixed(tmp_path):
    study, runs = write_systems(tmp_path / "both", protocols=("own", "common"))
    page = write_report(runs, tmp_path / "out", "Systems", study=study).read_text(encoding="utf-8")
    names = re.findall(r'<section id="(\w+)"', page)
    assert names == ["systems", "figures", "runs", "recipes"]
    figures = re.findall(r'<figure id="([\w-]+)"', page)
    assert figures[:3] == ["accuracy", "curves", "steps"]
    assert not {"difference", "overhead"} & set(figures)
    assert "TET is above STBP-tdBN by" in page
    assert APART in page
    assert "<dt>Systems and protocols</dt><dd>6</dd>" in page
    assert systems_markdown(entries_of(study, runs)) == (tmp_path / "out" / "systems.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_systems_of_one_recipe_are_paired_with_the_baseline_that_a_study_names(tmp_path):
    small = SMALL | {"about": {"system": "Spikformer"}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(small))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(small | {"lr": 0.1, "about": {"system": "TET"}}))
    variants = [
        {"label": "Spikformer", "protocol": "own"},
        {"label": "SAGE", "protocol": "own", "settings": {"policy.kind": "sage"}},
        {"label": "TET", "protocol": "own", "recipe": "other.yaml"},
    ]
    fields = {"recipe": "base.yaml", "variants": variants, "axes": {"seed": [1, 2]}}
    fields |= {"compare": {"baseline": "Spikformer (own)"}, "claims": "paper"}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(fields))
    study = load_study(tmp_path / "study.yaml")
    runs = load_runs(
        synthetic.write_run(tmp_path / planned.key, top1=50.0 + planned.recipe.seed, recipe=planned.recipe)
        for planned in study.runs()
    )
    page = write_report(runs, tmp_path / "out", "Beside", study=study).read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', page)[:4] == ["systems", "summary", "comparison", "claims"]
    said = re.search('id="summary".*?</section>', page, re.DOTALL).group(0)
    assert "SAGE (own), CIFAR-10, T = 4" in said
    assert "TET" not in said
    assert pd.read_csv(tmp_path / "out" / "figures" / "difference.csv")["label"].unique().tolist() == ["SAGE (own)"]


@pytest.mark.slow
def test_runs_of_different_systems_are_reported_without_their_study(measured, tmp_path):
    _, runs = measured
    with pytest.raises(ResultError, match=r"lr: 0\.001 or 0\.01 or 0\.1"):
        require_comparable(runs)
    page = write_report(runs, tmp_path / "out", "Runs").read_text(encoding="utf-8")
    assert 'id="systems"' not in page
    assert re.findall(r'<figure id="(steps)"', page) == ["steps"]


def test_a_converted_network_has_no_speed_and_no_curve(measured):
    _, runs = measured
    converted = [run for run in runs if run.recipe.lr == 0.1]
    assert np.isnan(converted[0].images_per_second)
    assert not {"curves", "overhead"} & {figure.name for figure in figures_of(converted)}
    curves = next(figure for figure in figures_of(runs) if figure.name == "curves")
    assert curves.data["label"].nunique() == 2


def planned_with(**recipe):
    model = SimpleNamespace(time_steps=32)
    return SimpleNamespace(recipe=SimpleNamespace(model=model, cooldown_epochs=0, **recipe))


def test_a_run_costs_its_stages_and_one_evaluation_at_least():
    ann = SimpleNamespace(settings={"epochs": 5})
    assert cost(planned_with(epochs=3, total_epochs=3)) == 3 * 32
    assert cost(planned_with(epochs=3, total_epochs=3, stages=(ann,))) == 5 + 3 * 32
    spiking = SimpleNamespace(settings={"epochs": 5, "cooldown_epochs": 1, "model.time_steps": 2})
    converted = planned_with(epochs=0, total_epochs=0, stages=(ann, spiking))
    assert cost(converted) == 5 + 6 * 2 + 32
    assert share(SimpleNamespace(epochs_done=lambda _: 0), converted) == 0
    assert share(SimpleNamespace(epochs_done=lambda _: 1), converted) == 1


def test_stages_read_as_words_in_labels_and_cells():
    stages = [{"name": "ann", "settings": {"epochs": 5, "lr": 0.1}}, {"name": "tuning", "settings": {}}]
    assert told(stages) == "ann(epochs=5,lr=0.1)+tuning()"
    assert told([0.25, 0.5]) == "[0.25, 0.5]"
