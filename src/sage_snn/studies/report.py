"""The report of a set of runs: one page that opens from disk, and its figures as files for papers."""

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from .. import __version__
from ..runs.folder import write_atomically
from .comparison import beside_baseline, compare, plain_label
from .conditions import condition_notes
from .figures import Figure, baseline_of, figures_of, save, unread
from .page.document import Section, write_page
from .page.findings import METRICS, comparison_tables, summary
from .page.markup import Markup, join, tag
from .page.material import facts_list, figure_section, recipe_section, runs_section
from .paper.claims import Claim, claims
from .paper.sections import claims_table, is_reported, reported, verdicts_in_words
from .phase import phase_words
from .plan import Planned
from .policies.entry import entries as policy_entries
from .policies.figure import policies_figure
from .policies.section import policies_section
from .progress import duration
from .results import ResultError, RunResult, field_columns, table
from .silence import silence
from .study import Study, searches_of
from .systems.entry import entries
from .systems.markdown import systems_markdown
from .systems.section import systems_section

# Families of figures that compare policies of one network, and mean nothing between systems.
POLICIES_ONLY = ("overhead", "sensitivity")


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
def write_report(
    runs: Sequence[RunResult],
    out: Path,
    title: str,
    *,
    study: Study | None = None,
    failures: Mapping[str, str] | None = None,
) -> Path:
    """Write out/report.html and out/figures/*.{png,pdf,csv}; gives the path of the page.

    A study brings the labels of its variants, its baseline and metric, which figures come first, and whether the
    paper's claims are judged; `failures` says why runs of it are missing, by their keys. A study of whole systems has
    their table first, and in out/systems.md, and pairs only what is trained as its baseline is; one that reports
    policies has their table first.
    """
    if not runs:
        raise ResultError("no finished run to report; run something first, or give the folders of finished runs")
    out = _folder(out)
    plan = study.runs() if study else []
    names = {planned.key: planned.label for planned in plan} or None
    rows = table(runs, names)
    labels = list(rows["label"])
    baseline = (study.compare.baseline if study else None) or baseline_of(rows)
    metric = study.compare.metric if study else METRICS[0]
    systems = entries(plan, runs, rows) if study and study.compares_systems else []
    policies = policy_entries(runs, rows, baseline) if study and "policies" in study.report else []
    figures = _in_order(figures_of(runs, names, baseline), study)
    figures = [figure for figure in figures if not (systems and _is_of_policies(figure, study))]
    if (at_a_glance := policies_figure(policies)) is not None:
        figures = [at_a_glance, *(figure for figure in figures if _family(figure) != "difference")]
    for figure in figures:
        save(figure, out / "figures")
    comparisons = {name: compare(rows, name, baseline) for name in dict.fromkeys([*METRICS, metric])}
    missing = [planned for planned in plan if planned.key not in {run.folder.name for run in runs}]
    judged = claims(runs) if study and study.claims == "paper" else []
    told = _told(_gap(missing, len(plan), failures or {}), runs, labels, judged)
    who = "System" if systems else "Policy"
    if systems:
        write_atomically(out / "systems.md", systems_markdown(systems).encode())
        findings = [systems_section(systems, told), *_beside(study, comparisons)]
    elif policies:
        findings = [policies_section(policies, told)]
    else:
        findings = [
            summary(comparisons[metric], baseline, metric, told),
            *([reported(runs, labels, comparisons)] if judged or is_reported(runs) else []),
            comparison_tables(comparisons, baseline),
        ]
    sections = [
        *findings,
        *([claims_table(judged, figures)] if judged else []),
        figure_section(figures, "" if systems or policies else unread(runs, labels)),
        *([comparison_tables(comparisons, baseline)] if policies else []),
        runs_section(rows.drop(columns=field_columns(rows)) if systems else rows, who),
        recipe_section(runs, labels),
    ]
    lede, facts = _lede(study), facts_list(_facts(rows, len(missing), who))
    return write_page(out / "report.html", title, lede, facts, sections, _foot())


def _beside(study: Study | None, comparisons: Mapping[str, pd.DataFrame]) -> list[Section]:
    """Of systems, what is trained as the study's baseline is; nothing where it names none."""
    if study is None or (baseline := study.compare.baseline) is None:
        return []
    metric, kept = study.compare.metric, {name: beside_baseline(one) for name, one in comparisons.items()}
    return [] if kept[metric].empty else [summary(kept[metric], baseline, metric), comparison_tables(kept, baseline)]


def _told(gap: str, runs: Sequence[RunResult], labels: Sequence[str], judged: Sequence[Claim]) -> list[Markup]:
    """What a reader must know before the comparison, and how the claims fare."""
    silent = silence(runs, labels)
    told = [tag("p", text, class_="note") for text in (gap, *condition_notes(runs)) if text]
    told += [tag("p", silent, class_="alarm")] if silent else []
    reasons = tag("a", "Their reasons", href="#claims")
    told += [tag("p", verdicts_in_words(judged), " ", reasons, ".")] if judged else []
    return told


def _lede(study: Study | None) -> Markup:
    """What the runs are about, and whether they search or confirm."""
    about = str(study.about.get("what", "")) if study else ""
    sentence = (
        "Surrogate-gradient slopes of a spiking transformer: what was trained, and what the results allow to say."
    )
    lede = tag("p", f"{about[:1].upper()}{about[1:]}." if about else sentence, class_="lede")
    phase = phase_words(study, searches_of(study)) if study else ""
    return join([lede, tag("p", phase, class_="phase") if phase else None])


def _foot() -> str:
    written = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    return (
        f"Written by sage-snn {__version__} on {written}. Figures are also in the folder figures beside this page. "
        "Epochs count from 1 here, and from 0 in data files."
    )


def _folder(out: Path) -> Path:
    try:
        (Path(out) / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"cannot write into {out}: {error.strerror}; choose another --out") from None
    return Path(out)


def _gap(missing: Sequence[Planned], planned: int, failures: Mapping[str, str]) -> str:
    """What is not in the numbers: a policy whose seeds fail must not look better for it."""
    if not missing:
        return ""
    failed = [run for run in missing if run.key in failures]
    told = f"{len(missing)} of {planned} planned runs are not finished and are in no number below."
    if not failed:
        return told
    by_label = ", ".join(f"{label} ({count})" for label, count in Counter(run.label for run in failed).items())
    first = failures[failed[0].key].splitlines()[0]
    return f"{told} {len(failed)} of them failed, which the means do not show: {by_label}; the first says: {first}"


def _facts(rows: Any, missing: int, who: str) -> dict[str, str]:
    seeds = rows.groupby(["data", "time_steps", "label"])["seed"].nunique()
    records = rows.to_dict("records")
    spread = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    return {
        "Runs": f"{len(rows)} of {len(rows) + missing}" if missing else str(len(rows)),
        "Data": ", ".join(rows["data"].unique()),
        "Policies" if who == "Policy" else "Systems and protocols": str(len({plain_label(row) for row in records})),
        "Time steps": ", ".join(str(steps) for steps in sorted(rows["time_steps"].unique())),
        f"Seeds per {who.lower()}": spread,
        "Training time": duration(float(rows["seconds"].sum())),
    }


def _in_order(figures: list[Figure], study: Study | None) -> list[Figure]:
    """What the study is about comes first."""
    wanted = study.report if study else []
    return sorted(figures, key=lambda figure: _family(figure) not in wanted)


def _is_of_policies(figure: Figure, study: Study | None) -> bool:
    """Does it compare policies of one network? Differences mean something to a baseline that somebody chose."""
    is_chosen = study is not None and study.compare.baseline is not None
    return _family(figure) in POLICIES_ONLY or (_family(figure) == "difference" and not is_chosen)


def _family(figure: Figure) -> str:
    return figure.name.split("-")[0]
