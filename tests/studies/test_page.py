import html.parser
import importlib.util
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sage_snn.studies.page.document import embedded
from sage_snn.studies.page.markup import Column, Markup, interval, number, table, tag
from sage_snn.studies.paper.reported import REPORTED, reported_on
from sage_snn.studies.report import write_report
from sage_snn.studies.results import ResultError, load_runs
from sage_snn.studies.study import parse_study

_spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(synthetic)


class Outline(html.parser.HTMLParser):
    """Elements of a page, and whether they nest."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.open, self.links, self.ids = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[key] for key in ("href", "src") if key in given]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_everything_but_markup_is_escaped():
    assert tag("p", "<b>", Markup("<i></i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></i></p>'


def test_data_cannot_end_its_script():
    assert "</script>" not in embedded({"name": "</script><script>alert(1)</script>"}).removesuffix("</script>")


def test_cells_read_one_way_and_sort_another():
    cells = table(
        [{"a": -1.234, "b": interval(1.0, 2.0, ".1f")}], [Column("a", "A", ".1f"), Column("b", "B", ".1f")], "c"
    )
    assert '<td class="number" data-value="-1.234">−1.2</td>' in cells
    assert '<td class="number" data-value="1.0">1.0 to 2.0</td>' in cells
    assert number(float("nan"), ".2f") == "–"


def test_reported_figures_are_those_of_the_paper():
    sage = {row.data: row.top1 for row in REPORTED if row.method == "SAGE"}
    assert sage == {"cifar10": 96.32, "cifar100": 78.69, "imagenet200": 60.60}
    assert [len(reported_on(data)) for data in sage] == [8, 8, 6]


@pytest.mark.slow
def test_a_report_is_one_file_that_needs_no_network(tmp_path):
    runs = load_runs(synthetic.write_study(tmp_path / "runs", time_steps=(4,), seeds=(1, 2), data="cifar10"))
    page = write_report(runs, tmp_path / "out", "A title").read_text()
    outline = Outline(page)
    assert outline.open == []
    assert "src" not in re.findall(r"<(?:script|img|iframe)[^>]*?\s(src)=", page)
    assert all(link.startswith(("#", "figures/", "data:")) for link in outline.links)
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    for link in outline.links:
        assert not link.startswith("figures/") or (tmp_path / "out" / link).is_file()
    assert "96.32" in page
    assert "Known problems of the reported figures" in page


def test_hostile_names_stay_text(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>"
    folder = tmp_path / "<svg onload=alert(2)>"
    run = synthetic.write_run(folder, {"policy.kind": "fixed", "name": hostile.replace("/", "")}, top1=50.0)
    page = write_report(load_runs([run]), tmp_path / "out", hostile).read_text()
    assert "<img" not in page
    assert "<svg onload" not in page.split("<script>", 1)[0]  # the drawing library itself writes SVG


def test_a_study_brings_its_labels_and_its_order(tmp_path):
    variants = [
        {"label": "fixed", "settings": {"policy.kind": "fixed"}},
        {"label": "broaden", "settings": {"policy.kind": "sage", "policy.gain": -0.5}},
    ]
    small = {"epochs": 4, "warmup_epochs": 0, "cooldown_epochs": 0, "model.dim": 24, "model.heads": 3, "model.depth": 2}
    fields = {"name": "directions", "about": {"what": "which way to move"}, "recipe": "digits", "settings": small}
    study = parse_study(fields | {"variants": variants, "axes": {"seed": [1, 2]}, "report": ["slopes"]})
    made = [
        synthetic.write_run(tmp_path / planned.key, planned.settings, top1=50.0 + planned.recipe.seed)
        for planned in study.runs()
    ]
    page = write_report(load_runs(made), tmp_path / "out", "Directions", study=study).read_text()
    assert "broaden, digits, T = 4" in page
    assert "Which way to move." in page
    assert re.findall(r'<figure id="([\w-]+)"', page)[0] == "slopes"


def test_a_study_that_does_not_ask_for_the_paper_s_claims_has_none(tmp_path):
    study, runs = grid(tmp_path / "runs", "lr", (0.1,), gains=(5,))
    page = write_report(runs, tmp_path / "own", "own", study=study).read_text(encoding="utf-8")
    for words in ("claims", "reported"):
        assert f'id="{words}"' not in page
    assert 'id="claims"' not in write_report(runs, tmp_path / "runs-only", "own").read_text(encoding="utf-8")
    asked = study.model_copy(update={"claims": "paper"})
    page = write_report(runs, tmp_path / "asked", "asked", study=asked).read_text(encoding="utf-8")
    assert 'id="claims"' in page
    assert "The paper reports nothing on the data of these runs (digits)" in page


def test_cannot_tell_is_a_verdict_with_a_mark_and_a_count_of_its_own(tmp_path):
    study, runs = grid(tmp_path / "runs", "model.time_steps", (1, 2, 4), gains=(5, -5, 0))
    noisy = {1: 0.3, 2: -0.4, 3: 0.2}
    runs = [
        replace(run, summary=run.summary | {"last_top1": run.summary["last_top1"] + noise(run, noisy)}) for run in runs
    ]
    asked = study.model_copy(update={"claims": "paper"})
    page = write_report(runs, tmp_path / "page", "noisy", study=asked).read_text(encoding="utf-8")
    assert '<span class="verdict open">cannot tell</span>' in page
    assert re.search(r"\.verdict\.open \{ color: var\(--open\); \} \.verdict\.open::before \{ content: .\?. ?;", page)
    said = re.search('id="summary".*?</section>', page, re.DOTALL).group(0)
    count = page.count('class="verdict open"')
    assert re.search(rf"Of the 12 claims of the paper: .*\b{count} cannot tell", said)


def noise(run, by_seed):
    return by_seed[run.recipe.seed] if run.recipe.policy.kind == "sage" and run.recipe.model.time_steps == 4 else 0.0


def test_an_interval_that_holds_zero_is_never_said_to_show_that_there_is_no_difference(tmp_path):
    study, runs = grid(tmp_path / "runs", "lr", (0.1,), gains=(0,))
    page = write_report(runs, tmp_path / "page", "none", study=study).read_text(encoding="utf-8")
    assert "shows no difference" not in page
    assert "An interval that holds zero means that no difference was seen, not that there is none." in page


def test_conditions_that_differ_are_said_in_the_summary(tmp_path):
    study, runs = grid(tmp_path / "runs", "lr", (0.1,), gains=(1,))
    runs = [replace(run, applied=run.applied | {"device": "cuda" if n % 2 else "cpu"}) for n, run in enumerate(runs)]
    page = write_report(runs, tmp_path / "page", "devices", study=study).read_text(encoding="utf-8")
    said = re.search('id="summary".*?</section>', page, re.DOTALL).group(0)
    assert "The runs differ in device (cpu: 3 runs, cuda: 3 runs): they are paired only where it is the same." in said
    assert "precision" in said
    assert "an older version wrote" in said


def test_silent_networks_are_named_in_the_summary_and_marked_in_their_figure(tmp_path):
    runs = load_runs([synthetic.write_run(tmp_path / "run", {"policy.kind": "fixed"}, top1=10.0)])
    silent = runs[0].metrics["firing_rates"].map(lambda rates: {k: v * k.startswith("stem") for k, v in rates.items()})
    runs = [replace(runs[0], metrics=runs[0].metrics.assign(firing_rates=silent))]
    page = write_report(runs, tmp_path / "page", "silent").read_text(encoding="utf-8")
    told = "no neuron fires from blocks.0.attention.query on in fixed (digits, T = 4, seed 42)"
    assert f'<p class="alarm">1 of 1 networks is silent: in the last epoch {told}.</p>' in page
    assert "Firing rates: fixed, digits, T = 4 (silent network)" in page


def test_people_read_epochs_from_one_and_files_count_from_zero(tmp_path):
    runs = load_runs([synthetic.write_run(tmp_path / "run", {"policy.kind": "fixed"}, top1=50.0)])
    page = write_report(runs, tmp_path / "page", "epochs").read_text(encoding="utf-8")
    assert pd.read_csv(tmp_path / "page" / "figures" / "curves.csv")["epoch"].tolist() == [0, 1, 2, 3]
    curves = re.search('<figure id="curves".*?</figure>', page, re.DOTALL).group(0)
    cells = re.findall(r"<tr><td>[^<]*</td><td>[^<]*</td><td[^>]*>(\d+)</td>", curves)
    assert cells == ["1", "2", "3", "4"]


def test_many_intervals_come_with_a_caution(tmp_path):
    runs = load_runs(synthetic.write_study(tmp_path / "runs", time_steps=(1, 4), seeds=(1, 2)))
    page = write_report(runs, tmp_path / "out", "Four comparisons").read_text()
    assert "These are 4 intervals: without any true difference one in twenty such intervals leaves out zero." in page
    alone = [run for run in runs if run.recipe.policy.kind != "learnable" and run.recipe.model.time_steps == 4]
    assert "one in twenty" not in write_report(alone, tmp_path / "one", "One comparison").read_text()


def grid(root, field, values, gains, kinds=("fixed", "sage")):
    """Runs over a field, in each of which sage gains what is given, and the study that plans them."""
    axes = {field: list(values), "seed": [1, 2, 3]}
    variants = [{"label": kind, "settings": {"policy.kind": kind}} for kind in kinds]
    small = {"epochs": 2, "warmup_epochs": 0, "cooldown_epochs": 0, "model.dim": 24, "model.heads": 3}
    study = parse_study({"name": "grid", "recipe": "digits", "settings": small, "variants": variants, "axes": axes})
    runs = []
    for planned in study.runs():
        chosen = small | planned.settings
        gain = gains[values.index(chosen[field])] if chosen["policy.kind"] == "sage" else 0.0
        top1 = 80 + 0.1 * chosen["seed"] + gain * (1 + 0.01 * chosen["seed"])
        runs.append(synthetic.write_run(root / planned.key, chosen, top1=top1))
    return study, load_runs(runs)


@pytest.mark.parametrize(("field", "values"), [("lr", (0.1, 0.2)), ("model.depth", (1, 2))])
def test_each_setting_is_compared_with_its_own_baseline(tmp_path, field, values):
    study, runs = grid(tmp_path / "runs", field, values, gains=(5, -5))
    last = field.rpartition(".")[2]
    for name, given in (("study", study), ("runs", None)):
        page = write_report(runs, tmp_path / name, "grid", study=given).read_text(encoding="utf-8")
        said = re.search('<ul class="said">(.*?)</ul>', page, re.DOTALL).group(1)
        assert re.findall(rf"<strong>sage {last}=(\S+), .*?</strong>(higher|lower) by", said) == [
            (f"{values[0]:g}", "higher"),
            (f"{values[1]:g}", "lower"),
        ]
        assert "fixed" not in said
        drawn = pd.read_csv(tmp_path / name / "figures" / "difference.csv")
        assert (np.sign(drawn["value"]) == np.sign(drawn["mean"])).all()
        assert len(drawn) == 6


def test_runs_that_are_missing_or_failed_are_told(tmp_path):
    study, runs = grid(tmp_path / "runs", "lr", (0.1, 0.2), gains=(5, -5))
    lost = [runs[0].folder.name, runs[1].folder.name]
    failures = {lost[0]: "the loss is nan\nand more"}
    page = write_report(runs[2:], tmp_path / "page", "grid", study=study, failures=failures).read_text(encoding="utf-8")
    assert "<dd>10 of 12</dd>" in page
    assert "2 of 12 planned runs are not finished and are in no number below. 1 of them failed" in page
    assert "fixed lr=0.1 (1); the first says: the loss is nan</p>" in page


def test_a_study_of_speed_is_summed_up_by_speed(tmp_path):
    study, runs = grid(tmp_path / "runs", "lr", (0.1,), gains=(5,))
    faster = study.model_copy(update={"compare": study.compare.model_copy(update={"metric": "images_per_second"})})
    page = write_report(runs, tmp_path / "page", "grid", study=faster).read_text(encoding="utf-8")
    said = re.search('id="summary".*?</section>', page, re.DOTALL).group(0)
    assert "Speed of training, in images per second, against fixed" in said
    assert "no difference seen: the interval [0.00, 0.00] holds zero" in said


def test_a_page_that_cannot_be_written_names_the_way_out(tmp_path):
    (tmp_path / "file").touch()
    runs = load_runs([synthetic.write_run(tmp_path / "run", top1=80.0)])
    with pytest.raises(ResultError, match=r"cannot write into .*file: .*; choose another --out"):
        write_report(runs, tmp_path / "file", "none")


def test_a_run_given_twice_counts_once(tmp_path):
    run = synthetic.write_run(tmp_path / "run", top1=80.0)
    assert len(load_runs([run, tmp_path / "." / "run", run])) == 1


def test_no_run_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ResultError, match="no finished run"):
        write_report([], tmp_path, "nothing")


@pytest.mark.slow
def test_sixty_runs_are_drawn_in_time_on_a_small_page(tmp_path):
    sizes = {"epochs": 5, "model.depth": 4, "model.dim": 64, "model.heads": 8, "data": "cifar10"}
    made = synthetic.write_study(tmp_path / "runs", steps=62, observed=(1, 2, 4, 8), **sizes)
    assert len(made) == 60
    started = time.process_time()  # of this process: other work on the machine must not fail it
    page = write_report(load_runs(made), tmp_path / "out", "Sixty runs")
    assert time.process_time() - started < 40  # 13 s on an idle machine: benchmarks/report_time.py
    assert page.stat().st_size < 8_000_000
