"""What the runs allow to say: the summary in words, and the comparison in numbers."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..figures.style import label_order
from ..paper.reported import ABSTRACT_GAIN, GAINS, TITLES
from .document import Section, section
from .markup import Column, Markup, details, interval, number, table, tag

SHOWN = 12  # sentences before the rest is folded away
METRICS = ("last_top1", "best_top1")  # shown in every report
CAPTIONS = {
    "last_top1": "Top-1 (%), last epoch. Differences in percentage points",
    "best_top1": "Top-1 (%), best epoch. Differences in percentage points",
    "images_per_second": "Images per second in training. Differences in images per second",
}
COMPARED = {
    "last_top1": "Top-1 accuracy after the last epoch, in percentage points",
    "best_top1": "Top-1 accuracy of the best epoch, in percentage points",
    "images_per_second": "Speed of training, in images per second",
}
LOOKED_FOR = (
    f"a gain of {ABSTRACT_GAIN:g} point ({', '.join(f'{gain:g} on {TITLES[data]}' for data, gain in GAINS.items())}, "
    "the gains that the paper of SAGE reports; 1 % of a speed)"
)
MINUS = re.compile(r"(?<![\w.])-(?=\d)")  # between words a hyphen stays one


def ordered(comparison: Any) -> list[dict[str, Any]]:
    """Rows of a comparison: data, T, policies first."""
    return sorted(
        comparison.to_dict("records"), key=lambda row: (row["data"], row["time_steps"], label_order(row["label"]))
    )


def summary(comparison: pd.DataFrame, baseline: str, metric: str, told: Sequence[Markup] = ()) -> Section:
    """What must be `told` first, and a sentence per label and time steps, as the comparison words it."""
    rows = [row for row in ordered(comparison) if not row["is_baseline"]]
    sentences = [
        tag("li", tag("strong", f"{row['label']}, {_name(row['data'])}, T = {row['time_steps']}: "), _sentence(row))
        for row in rows
    ]
    intro = (
        f"{COMPARED[metric]}, against {baseline}; runs are paired by seed and the intervals hold 95 %. "
        "The words follow from the intervals."
    )
    if not sentences:
        alone = tag("p", f"Only {baseline} was run, so there is nothing to compare yet.")
        return section("summary", "Summary", *told, alone)
    rest = details(f"{len(sentences) - SHOWN} more", tag("ul", *sentences[SHOWN:], class_="said"))
    cautions = sorted({row["caution"] for row in rows if row.get("caution")})
    if (tested := sum(int(row["pairs"]) > 1 for row in rows)) > 1:
        cautions.append(by_chance(tested))
    return section(
        "summary",
        "Summary",
        *told,
        tag("p", intro),
        tag("ul", *sentences[:SHOWN], class_="said"),
        rest if len(sentences) > SHOWN else None,
        *(tag("p", f"{caution[:1].upper()}{caution[1:]}.", class_="note") for caution in cautions),
    )


def by_chance(intervals: int) -> str:
    """What a reader of many intervals must know."""
    return f"these are {intervals} intervals: without any true difference one in twenty such intervals leaves out zero"


def comparison_tables(comparisons: dict[str, pd.DataFrame], baseline: str) -> Section:
    """Mean, spread and paired difference of every label, for the last and the best epoch."""
    columns = [
        Column("data", "Data"),
        Column("time_steps", "T", "d"),
        Column("label", "Policy"),
        Column("n", "Seeds", "d"),
        Column("mean", "Mean", ".2f"),
        Column("std", "Std", ".2f", "sample standard deviation over seeds"),
        Column("range", "95 % interval", ".2f", "of the mean, by Student's t"),
        Column("difference", "Difference", "+.2f", f"paired with {baseline} by seed"),
        Column("t", "95 % interval", "+.2f", "of the difference, by Student's t"),
        Column("bootstrap", "Bootstrap", "+.2f", "95 % interval of the difference: too narrow for few seeds"),
        Column(
            "seeds_needed",
            "Seeds needed",
            ",d",
            f"to see {LOOKED_FOR} in 8 of 10 studies",
        ),
    ]
    tables = [
        table(
            [row | _cells(row) for row in ordered(compared)],
            columns,
            f"{CAPTIONS[metric]} to {baseline}.",
        )
        for metric, compared in comparisons.items()
    ]
    note = (
        "The best epoch is chosen on the test images and therefore flatters every policy. Seeds needed: pairs with "
        f"which a t test would see {LOOKED_FOR} in 80 % of studies, given the spread seen here."
    )
    return section("comparison", "Comparison", *tables, tag("p", note, class_="note"))


def _sentence(row: dict[str, Any]) -> str:
    pairs = int(row.get("pairs") or 0)
    counted = f" ({number(row['difference'], '+.2f')} on average of {pairs} seeds)" if pairs > 1 else ""
    return f"{MINUS.sub('−', str(row['words']))}{counted}."


def _name(data: str) -> str:
    return TITLES.get(data, data)


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    needed = row["seeds_needed"]
    return {
        "seeds_needed": None if pd.isna(needed) else int(needed),
        "range": interval(row["low"], row["high"], ".2f"),
        "t": interval(row["difference_low"], row["difference_high"], "+.2f"),
        "bootstrap": interval(row["bootstrap_low"], row["bootstrap_high"], "+.2f"),
    }
