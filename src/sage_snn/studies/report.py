"""The report of a set of runs: one page that opens from disk, and its figures as files for papers."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from .claims import claims
from .comparison import compare
from .figures import Figure, baseline_of, figures_of, save
from .page.document import write_page
from .page.findings import METRICS, claims_table, comparison_tables, reported, summary
from .page.markup import tag
from .page.material import facts_list, figure_section, recipe_section, runs_section
from .results import ResultError, RunResult, table
from .study import Study

FIRST = {"timesteps": "accuracy", "table1": "accuracy", "table2": "accuracy", "direction": "difference"}


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Drawing makes objects by the hundred thousand and keeps few: to search them for cycles is a sixth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_collector_paused()
def write_report(runs: Sequence[RunResult], out: Path, title: str, *, study: Study | None = None) -> Path:
    """Write out/report.html and out/figures/*.{png,pdf,csv}; gives the path of the page.

    A study brings the labels of its variants, its baseline, and which figures come first.
    """
    if not runs:
        raise ResultError("no finished run to report; run something first, or give the folders of finished runs")
    out = Path(out)
    names = {planned.key: planned.label for planned in study.runs()} if study else None
    rows = table(runs, names)
    labels = rows["label"].tolist()
    baseline = study.compare.baseline if study else baseline_of(labels)
    figures = _in_order(figures_of(runs, names, baseline), study)
    for figure in figures:
        save(figure, out / "figures")
    comparisons = {metric: compare(rows, metric, baseline) for metric in METRICS}
    sections = [
        summary(comparisons["last_top1"], baseline),
        reported(runs, labels, comparisons),
        comparison_tables(comparisons, baseline),
        claims_table(claims(runs), figures),
        figure_section(figures),
        runs_section(rows),
        recipe_section(runs, labels),
    ]
    lede = tag("p", _lede(study), class_="lede")
    written = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    foot = f"Written by sage-snn {__version__} on {written}. Figures are also in the folder figures beside this page."
    return write_page(out / "report.html", title, lede, facts_list(_facts(rows)), sections, foot)


def _lede(study: Study | None) -> str:
    about = str(study.about.get("what", "")) if study else ""
    sentence = (
        "Surrogate-gradient slopes of a spiking transformer: what was trained, and what the results allow to say."
    )
    return f"{about[:1].upper()}{about[1:]}." if about else sentence


def _facts(rows: Any) -> dict[str, str]:
    hours = float(rows["seconds"].sum()) / 3600
    seeds = rows.groupby(["data", "time_steps", "label"])["seed"].nunique()
    spread = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    return {
        "Runs": str(len(rows)),
        "Data": ", ".join(rows["data"].unique()),
        "Policies": str(rows["label"].nunique()),
        "Time steps": ", ".join(str(steps) for steps in sorted(rows["time_steps"].unique())),
        "Seeds per policy": spread,
        "Training time": f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min",
    }


def _in_order(figures: list[Figure], study: Study | None) -> list[Figure]:
    """What the study is about comes first."""
    wanted = [FIRST.get(name, name) for name in study.report] if study else []
    families = {figure.name: next((w for w in wanted if figure.name.split("-")[0] == w), None) for figure in figures}
    return sorted(figures, key=lambda figure: families[figure.name] is None)
